// SipHash in strands: against SipHash of each strand by itself, on every instruction set.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "runtime/base/siphash.h"
#include "runtime/kernels/sip_strands.h"
#include "tests/unit/each_target.h"

namespace nzcl::test {
namespace {

std::uint64_t strand(const std::vector<std::uint64_t>& words, std::uint64_t number, const SipKey& key) {
  std::vector<std::uint64_t> own{number};
  for (std::size_t i = number; i < words.size(); i += kSipStrands) own.push_back(words[i]);
  SipHash hash(key);
  hash.add(std::as_bytes(std::span(own)));
  return hash.finish();
}

TEST(SipStrands, EachIsSipHashOfItsNumberAndItsWords) {
  const SipKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::mt19937_64 random(11);
  for (const std::size_t groups : {1, 2, 31, 32, 33, 256}) {
    std::vector<std::uint64_t> words(groups * kSipStrands);
    for (std::uint64_t& word : words) word = random();
    on_each_target([&] {
      std::array<std::uint64_t, kSipStrands> digests{};
      sip_strands(std::as_bytes(std::span(words)).data(), groups, key, digests.data());
      for (std::size_t i = 0; i < kSipStrands; ++i) EXPECT_EQ(digests[i], strand(words, i, key)) << groups;
    });
  }
}

TEST(SipStrands, WordsMayLieAnywhere) {
  std::vector<std::byte> bytes(3 * kSipGroupBytes + 4);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37);
  std::vector<std::uint64_t> words(3 * kSipStrands);
  std::memcpy(words.data(), bytes.data() + 4, bytes.size() - 4);
  on_each_target([&] {
    std::array<std::uint64_t, kSipStrands> digests{};
    sip_strands(bytes.data() + 4, 3, {}, digests.data());
    EXPECT_EQ(digests[2], strand(words, 2, {}));
  });
}

}  // namespace
}  // namespace nzcl::test
