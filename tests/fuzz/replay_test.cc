// Runs a fuzz program as a unit test, with its seeds and with small changes of them.
#include <gtest/gtest.h>

#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

void feed(const std::string& input) {
  // The input is copied into memory of exactly its size, so that a sanitizer notices a read beyond its end.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

/// About this many positions of each seed are tried, so that long seeds do not take too long.
constexpr std::size_t kPositions = 200;

TEST(NZCL_FUZZ_SUITE, Seeds) {
  feed("");
  for (const std::string& seed : fuzz_seeds()) feed(seed);
}

TEST(NZCL_FUZZ_SUITE, SeedsCutShort) {
  for (const std::string& seed : fuzz_seeds()) {
    for (std::size_t n = 0; n < seed.size(); n += 1 + seed.size() / kPositions) feed(seed.substr(0, n));
  }
}

TEST(NZCL_FUZZ_SUITE, SeedsWithAByteChanged) {
  for (const std::string& seed : fuzz_seeds()) {
    for (std::size_t n = 0; n < seed.size(); n += 1 + seed.size() / kPositions) {
      for (const unsigned char mask : {0x01, 0x80, 0xff}) {
        std::string changed = seed;
        changed[n] = static_cast<char>(static_cast<unsigned char>(changed[n]) ^ mask);
        feed(changed);
      }
    }
  }
}

}  // namespace
}  // namespace nzcl::test
