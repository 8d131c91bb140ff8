#include "runtime/base/bitmap.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace nzcl {
namespace {

using Words = std::vector<std::uint64_t>;

Words pack(const std::vector<bool>& bits) {
  Words words(words_for(bits.size()));
  for (std::size_t b = 0; b < bits.size(); ++b) {
    if (bits[b]) set_bit(words, b);
  }
  return words;
}

/// Bits in long runs, so that some words are all zeros or all ones. The code treats those at once, where a
/// naive loop goes bit by bit.
std::vector<bool> runs_of_bits() {
  std::vector<bool> bits;
  bool value = *rc::gen::arbitrary<bool>();
  for (const int length : *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 150))) {
    bits.insert(bits.end(), static_cast<std::size_t>(length), value);
    value = !value;
  }
  return bits;
}

TEST(Bitmap, WordsFor) {
  static_assert(words_for(0) == 0 && words_for(1) == 1 && words_for(64) == 1 && words_for(65) == 2);
  static_assert(words_for(~std::uint64_t{0}) == std::uint64_t{1} << 58);
}

TEST(Bitmap, BitOrderIsLeastSignificantFirst) {
  Words words(2);
  set_bit(words, 0);
  set_bit(words, 63);
  set_bit(words, 65);
  EXPECT_EQ(words, (Words{0x8000000000000001, 2}));
  EXPECT_TRUE(test_bit(words, 65));
  EXPECT_FALSE(test_bit(words, 64));
}

TEST(Bitmap, FillOnesClearsWhatFollows) {
  for (const std::uint64_t bits : {0, 1, 63, 64, 65, 128, 130, 192}) {
    Words words(3, 0xaaaaaaaaaaaaaaaa);
    fill_ones(words, bits);
    EXPECT_EQ(words, pack([&] {
                std::vector<bool> expected(192);
                std::fill_n(expected.begin(), bits, true);
                return expected;
              }()))
        << bits;
  }
}

TEST(Bitmap, AllSetLooksAtTheFirstBitsOnly) {
  EXPECT_TRUE(all_set({}, 0));
  for (const std::uint64_t bits : {1u, 63u, 64u, 65u, 128u}) {
    Words words(words_for(bits));
    fill_ones(words, bits);
    EXPECT_TRUE(all_set(words, bits)) << bits;
    words[(bits - 1) / 64] ^= std::uint64_t{1} << ((bits - 1) % 64);
    EXPECT_FALSE(all_set(words, bits)) << bits;
    EXPECT_TRUE(all_set(words, bits - 1)) << bits;
  }
}

TEST(Bitmap, RunsEndWhereBitsDiffer) {
  const Words words{std::uint64_t{1} << 63 | 0b0110, 0b0001};
  EXPECT_EQ(ends_of_runs(words, 0), 0b0101u | std::uint64_t{1} << 62) << "bits 63 and 64 are one run";
  EXPECT_EQ(ends_of_runs(words, 1), 0b0001u);
  EXPECT_EQ(ends_of_runs(Words{~std::uint64_t{0}}, 0), std::uint64_t{1} << 63)
      << "bits behind the end are clear";
}

TEST(Bitmap, NothingInNothing) {
  EXPECT_EQ(count_bits(Words{}), 0u);
  EXPECT_EQ(count_bits(Words{}, 0, 0), 0u);
  EXPECT_EQ(next_set(Words{}, 0, 0), 0u);
  EXPECT_EQ(next_clear(Words{}, 0, 0), 0u);
  EXPECT_EQ(count_runs(Words{}, 0), 0u);
}

TEST(Bitmap, BitsFromTheLimitUpDoNotCount) {
  const Words words{0xf0, ~std::uint64_t{0}};
  EXPECT_EQ(next_set(words, 0, 4), 4u);
  EXPECT_EQ(next_set(words, 8, 64), 64u);
  EXPECT_EQ(next_clear(words, 4, 7), 7u);
  EXPECT_EQ(next_set(words, 9, 5), 5u);
  EXPECT_EQ(count_runs(words, 5), 1u);
  EXPECT_EQ(count_runs(words, 4), 0u);
}

RC_GTEST_PROP(Bitmap, AgreesWithOneBitAtATime, ()) {
  const std::vector<bool> bits = runs_of_bits();
  const Words words = pack(bits);
  const std::uint64_t size = bits.size();
  const auto first = *rc::gen::inRange<std::uint64_t>(0, size + 1);
  const auto last = *rc::gen::inRange<std::uint64_t>(first, size + 1);

  std::uint64_t count = 0, runs = 0, set = last, clear = last;
  for (std::uint64_t b = last; b-- > first;) {
    count += bits[b];
    (bits[b] ? set : clear) = b;
  }
  for (std::uint64_t b = 0; b < last; ++b) runs += bits[b] && (b == 0 || !bits[b - 1]);

  RC_ASSERT(count_bits(words, first, last) == count);
  RC_ASSERT(count_bits(words, 0, size) == count_bits(words));
  RC_ASSERT(next_set(words, first, last) == set);
  RC_ASSERT(next_clear(words, first, last) == clear);
  RC_ASSERT(count_runs(words, last) == runs);
  for (std::uint64_t b = 0; b < size; ++b) RC_ASSERT(test_bit(words, b) == bits[b]);
}

}  // namespace
}  // namespace nzcl
