#include "runtime/base/cold_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace nzcl {
namespace {

using testing::Each;

/// Sizes around one, two and many pieces, beginning at every offset within a cache line.
class ColdMemoryTest : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::byte kUntouched{0xee};
  std::vector<std::byte> to_ = std::vector<std::byte>(GetParam() + 2 * kCacheLine, kUntouched);
  void expect_untouched_outside(std::size_t begin) {
    EXPECT_THAT(std::vector(to_.begin(), to_.begin() + static_cast<std::ptrdiff_t>(begin)), Each(kUntouched));
    EXPECT_THAT(std::vector(to_.begin() + static_cast<std::ptrdiff_t>(begin + GetParam()), to_.end()),
                Each(kUntouched));
  }
};

TEST_P(ColdMemoryTest, CopiesAllOfARunAndNothingElse) {
  std::vector<std::byte> from(GetParam());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
  for (std::size_t begin = 1; begin < kCacheLine; begin += 21) {
    to_.assign(to_.size(), kUntouched);
    copy_cold(to_.data() + begin, from.data(), from.size());
    EXPECT_TRUE(std::equal(from.begin(), from.end(), to_.begin() + static_cast<std::ptrdiff_t>(begin)));
    expect_untouched_outside(begin);
  }
}

TEST_P(ColdMemoryTest, ZeroesAllOfARunAndNothingElse) {
  for (std::size_t begin = 1; begin < kCacheLine; begin += 21) {
    to_.assign(to_.size(), kUntouched);
    zero_cold(to_.data() + begin, GetParam());
    const auto first = to_.begin() + static_cast<std::ptrdiff_t>(begin);
    EXPECT_THAT(std::vector(first, first + static_cast<std::ptrdiff_t>(GetParam())), Each(std::byte{0}));
    expect_untouched_outside(begin);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ColdMemoryTest,
                         testing::Values(0, 1, kPrefetchBytes - 1, kPrefetchBytes, kPrefetchBytes + 1,
                                         2 * kPrefetchBytes, 10 * kPrefetchBytes + 333));

}  // namespace
}  // namespace nzcl
