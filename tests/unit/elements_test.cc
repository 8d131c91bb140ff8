#include "runtime/kernels/elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "each_target.h"
#include "guarded.h"
#include "runtime/base/bitmap.h"

namespace nzcl {
namespace {

using test::Guarded;
using test::on_each_target;
using Bytes = std::vector<std::byte>;
using Words = std::vector<std::uint64_t>;

struct Packed {
  Words bitmap;
  Bytes values;
  std::size_t count = 0;
  bool operator==(const Packed&) const = default;
};

/// Packs the elements in `bitmap`, or, without one, those that have a bit set: one byte after the other.
Packed naive_pack(std::span<const std::byte> dense, std::size_t size, const Words* bitmap = nullptr) {
  Packed packed{.bitmap = Words(words_for(dense.size() / size)), .values = {}, .count = 0};
  for (std::size_t i = 0; i < dense.size() / size; ++i) {
    const auto element = dense.subspan(i * size, size);
    const bool any = std::ranges::any_of(element, [](std::byte b) { return b != std::byte{0}; });
    if (bitmap != nullptr ? !test_bit(*bitmap, i) : !any) continue;
    set_bit(packed.bitmap, i);
    packed.values.insert(packed.values.end(), element.begin(), element.end());
    ++packed.count;
  }
  return packed;
}

/// Packs into memory that holds `capacity` elements and ends at an inaccessible page.
Packed scan(std::span<const std::byte> dense, std::size_t size, std::size_t capacity) {
  const Guarded values(capacity * size), bitmap(words_for(dense.size() / size) * 8);
  const std::span words(reinterpret_cast<std::uint64_t*>(bitmap.data()), bitmap.size() / 8);
  Packed packed{.bitmap = {}, .values = {}, .count = scan_and_pack(dense, size, words, values.bytes())};
  packed.bitmap.assign(words.begin(), words.end());
  if (packed.count != kTooDense) packed.values.assign(values.data(), values.data() + packed.count * size);
  return packed;
}

Bytes pack_known(std::span<const std::byte> dense, std::size_t size, const Packed& expected) {
  const Guarded values(expected.count * size);
  pack(dense, size, expected.bitmap, values.bytes());
  return {values.bytes().begin(), values.bytes().end()};
}

/// Expands into memory that is not zero and ends at an inaccessible page.
Bytes expanded(const Packed& packed, std::size_t size, std::size_t bytes, StoreTo where) {
  const Guarded values(packed.values.size()), dense(bytes);
  std::ranges::copy(packed.values, values.data());
  std::ranges::fill(dense.bytes(), std::byte{0xa5});
  expand(values.bytes(), size, packed.bitmap, dense.bytes(), where);
  return {dense.bytes().begin(), dense.bytes().end()};
}

/// Fills a share of the elements with any bits. Some of these elements have a single bit.
void fill(std::span<std::byte> dense, std::size_t size, double density, std::mt19937_64& random) {
  for (std::size_t i = 0; i + size <= dense.size(); i += size) {
    std::uint64_t bits = 0;
    if (std::uniform_real_distribution()(random) < density)
      bits = random() % 2 == 0 ? std::uint64_t{1} << random() % (8 * size) : random();
    std::memcpy(&dense[i], &bits, size);
  }
}

class Elements : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Elements, EqualALoopOverBytes) {
  const std::size_t size = GetParam();
  std::mt19937_64 random(1);
  for (const std::size_t elements :
       {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 200, 1000, 5003}) {
    for (const double density : {0.0, 0.01, 0.1, 0.5, 0.9, 1.0}) {
      const Guarded dense(elements * size);
      fill(dense.bytes(), size, density, random);
      const Packed expected = naive_pack(dense.bytes(), size);
      on_each_target([&] {
        const auto where = [&, elements = elements, density = density] {
          return std::to_string(elements) + " elements, density " + std::to_string(density);
        };
        ASSERT_EQ(scan(dense.bytes(), size, expected.count), expected) << where();
        ASSERT_EQ(scan(dense.bytes(), size, elements + 100), expected) << where();
        ASSERT_EQ(pack_known(dense.bytes(), size, expected), expected.values) << where();
        const Bytes original(dense.bytes().begin(), dense.bytes().end());
        for (const StoreTo to : {StoreTo::cache, StoreTo::memory})
          ASSERT_EQ(expanded(expected, size, dense.size(), to), original) << where();
      });
    }
  }
}

TEST_P(Elements, TooManyAreReportedAndNotWritten) {
  const std::size_t size = GetParam();
  std::mt19937_64 random(2);
  const Guarded dense(1000 * size);
  fill(dense.bytes(), size, 0.4, random);
  const std::size_t count = naive_pack(dense.bytes(), size).count;
  on_each_target([&] {
    for (const std::size_t capacity : {std::size_t{0}, std::size_t{1}, std::size_t{63}, count / 2, count - 1})
      EXPECT_EQ(scan(dense.bytes(), size, capacity).count, kTooDense) << capacity;
  });
}

// A caller's own bitmap may name elements that are zero, and leave out others.
TEST_P(Elements, PackedByAnyBitmap) {
  const std::size_t size = GetParam();
  std::mt19937_64 random(3);
  const Guarded dense(777 * size);
  fill(dense.bytes(), size, 0.5, random);
  for (const int ands : {0, 1, 4}) {
    Words bitmap(words_for(777));
    for (std::uint64_t& word : bitmap) {
      word = random();
      for (int i = 0; i < ands; ++i) word &= random();
    }
    bitmap.back() &= low_bits(777 % 64);
    const Packed expected = naive_pack(dense.bytes(), size, &bitmap);
    on_each_target([&] { ASSERT_EQ(pack_known(dense.bytes(), size, expected), expected.values); });
  }
}

INSTANTIATE_TEST_SUITE_P(Bytes, Elements, ::testing::Values(1, 2, 4, 8), ::testing::PrintToStringParamName());

TEST(ElementsByHand, NegativeZeroIsNotZero) {
  const float values[] = {0.0f, -0.0f, 0.0f, 1.0f};
  on_each_target([&] {
    const Packed packed = scan(std::as_bytes(std::span(values)), 4, 2);
    EXPECT_EQ(packed.count, 2u);
    EXPECT_EQ(packed.bitmap, Words{0b1010});
  });
}

TEST(ElementsByHand, ExpandedAtAnyAlignment) {
  std::mt19937_64 random(4);
  for (const std::size_t size : {1, 2, 4, 8}) {
    Bytes dense(640 * size);
    fill(dense, size, 0.2, random);
    const Packed packed = naive_pack(dense, size);
    alignas(64) static std::byte output[640 * 8 + 64];
    on_each_target([&] {
      for (const auto& [at, to] : {std::pair(std::size_t{0}, StoreTo::memory),
                                   {size, StoreTo::memory},
                                   {std::size_t{1}, StoreTo::memory},  // where no longer element may lie
                                   {std::size_t{16}, StoreTo::memory},
                                   {64 - size, StoreTo::memory},
                                   {std::size_t{48}, StoreTo::cache}}) {
        std::memset(output, 0xff, sizeof output);
        expand(packed.values, size, packed.bitmap, std::span(output).subspan(at, dense.size()), to);
        ASSERT_TRUE(std::ranges::equal(dense, std::span(output).subspan(at, dense.size())))
            << size << " " << at;
        EXPECT_EQ(output[at + dense.size()], std::byte{0xff});
      }
    });
  }
}

RC_GTEST_PROP(ElementsProperty, PackedAndExpandedAgain, ()) {
  const auto size = *rc::gen::element<std::size_t>(1, 2, 4, 8);
  const auto elements =
      *rc::gen::oneOf(rc::gen::inRange<std::size_t>(0, 300), rc::gen::just(kMostSliceElements));
  const auto density = *rc::gen::element(0.0, 0.001, 0.05, 0.3, 1.0);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const Guarded dense(elements * size);
  fill(dense.bytes(), size, density, random);
  const Packed expected = naive_pack(dense.bytes(), size);
  const std::size_t spare = *rc::gen::inRange<std::size_t>(0, 130);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ForcedTarget forced(target);
    RC_ASSERT(scan(dense.bytes(), size, expected.count + spare) == expected);
    RC_ASSERT(std::ranges::equal(expanded(expected, size, dense.size(), StoreTo::cache), dense.bytes()));
  }
}

}  // namespace
}  // namespace nzcl
