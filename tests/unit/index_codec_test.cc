#include "runtime/kernels/index_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "guarded.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/offsets.h"

namespace nzcl {
namespace {

using test::Guarded;
using Bytes = std::vector<std::byte>;
using Words = std::vector<std::uint64_t>;
using Offsets = std::vector<std::uint16_t>;

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

/// An index set in both forms.
struct Set {
  std::size_t elements;
  Offsets offsets;
  Words bitmap;
};

Set set_of(std::size_t elements, const Offsets& offsets) {
  Set set{elements, offsets, Words(words_for(elements))};
  bitmap_of(offsets, set.bitmap);
  return set;
}

/// Encodes into memory of exactly the size that was said before, which ends at an inaccessible page.
template <class Encode>
Bytes encoded(std::size_t size, Encode encode) {
  const Guarded memory(size);
  encode(memory.bytes());
  return {memory.bytes().begin(), memory.bytes().end()};
}

Bytes as_bitmap(const Set& s) {
  return encoded(bitmap_bytes(s.elements), [&](auto bytes) { encode_bitmap(s.bitmap, bytes); });
}
Bytes as_offsets(const Set& s) {
  return encoded(offsets_bytes(s.offsets.size()), [&](auto bytes) { encode_offsets(s.offsets, bytes); });
}
Bytes as_gaps(const Set& s) {
  return encoded(gaps_bytes(s.offsets), [&](auto bytes) { encode_gaps(s.offsets, bytes); });
}
Bytes as_rice(const Set& s) {
  return encoded(rice_bytes(s.offsets, s.elements),
                 [&](auto bytes) { encode_rice(s.offsets, s.elements, bytes); });
}
Bytes as_runs(const Set& s) {
  return encoded(runs_bytes(s.bitmap), [&](auto bytes) { encode_runs(s.bitmap, s.elements, bytes); });
}

/// Decodes from and into memory that ends at an inaccessible page. Empty: refused.
std::optional<Words> decoded_bitmap(auto decode, const Bytes& bytes, std::size_t elements,
                                    std::size_t count) {
  const Guarded from(bytes.size()), to(8 * words_for(elements));
  std::ranges::copy(bytes, from.data());
  const std::span words(reinterpret_cast<std::uint64_t*>(to.data()), to.size() / 8);
  if (!decode(from.bytes(), elements, count, words)) return std::nullopt;
  return Words(words.begin(), words.end());
}
std::optional<Offsets> decoded_offsets(auto decode, const Bytes& bytes, std::size_t elements,
                                       std::size_t count) {
  const Guarded from(bytes.size()), to(2 * count);
  std::ranges::copy(bytes, from.data());
  const std::span offsets(reinterpret_cast<std::uint16_t*>(to.data()), count);
  if (!decode(from.bytes(), elements, offsets)) return std::nullopt;
  return Offsets(offsets.begin(), offsets.end());
}

void expect_round_trips(const Set& s) {
  const std::size_t count = s.offsets.size();
  EXPECT_EQ(decoded_bitmap(decode_bitmap, as_bitmap(s), s.elements, count), s.bitmap);
  EXPECT_EQ(decoded_offsets(decode_offsets, as_offsets(s), s.elements, count), s.offsets);
  EXPECT_EQ(decoded_offsets(decode_gaps, as_gaps(s), s.elements, count), s.offsets);
  EXPECT_EQ(decoded_bitmap(decode_runs, as_runs(s), s.elements, count), s.bitmap);
  EXPECT_EQ(decoded_offsets(decode_rice, as_rice(s), s.elements, count), s.offsets);
  EXPECT_LE(gaps_bytes(s.offsets), most_gaps_bytes(s.elements, count));
}

Set random_set(std::size_t elements, double density, std::mt19937_64& random) {
  Offsets offsets;
  for (std::size_t i = 0; i < elements; ++i) {
    if (std::uniform_real_distribution()(random) < density) offsets.push_back(static_cast<std::uint16_t>(i));
  }
  return set_of(elements, offsets);
}

TEST(IndexCodec, RoundTrips) {
  std::mt19937_64 random(1);
  for (const std::size_t elements : {0, 1, 7, 63, 64, 65, 255, 256, 257, 600, 5000, 65535, 65536}) {
    for (const double density : {0.0, 0.0005, 0.003, 0.02, 0.1, 0.5, 1.0})
      expect_round_trips(random_set(elements, density, random));
  }
}

// Every gap around the escapes, at the beginning, between elements, and within eight that are coded together.
TEST(IndexCodec, Gaps) {
  for (const int gap : {0, 1, 253, 254, 255, 256, 509, 510, 511, 765, 65520}) {
    for (int at = 0; at < 16; ++at) {
      Offsets offsets;
      int next = 0;
      for (int i = 0; i < 16 && next < 65536; ++i) {
        if (i == at) next += gap;
        if (next < 65536) offsets.push_back(static_cast<std::uint16_t>(next++));
      }
      const Set set = set_of(65536, offsets);
      expect_round_trips(set);
      if (offsets.size() == 16) {
        EXPECT_EQ(gaps_bytes(offsets), 16u + static_cast<std::size_t>(gap) / 255) << gap;
      }
    }
  }
}

TEST(IndexCodec, TheBytes) {
  const Set set = set_of(1000, {3, 4, 5, 259, 515, 999});
  EXPECT_EQ(as_offsets(set_of(1000, {3, 515})), bytes_of({3, 0, 3, 2}));
  EXPECT_EQ(as_gaps(set), bytes_of({3, 0, 0, 253, 255, 0, 255, 228}));
  EXPECT_EQ(as_rice(set), bytes_of({7, 1, 1, 246, 253, 227, 24}));
  EXPECT_EQ(as_runs(set), bytes_of({3, 0, 2, 0, 3, 1, 0, 0, 3, 2, 0, 0, 0xe7, 3, 0, 0}));
  EXPECT_EQ(as_bitmap(set_of(65, {0, 9, 64})), bytes_of({1, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(IndexCodec, RefusesBitmaps) {
  const Bytes good = as_bitmap(set_of(70, {1, 69}));
  EXPECT_TRUE(decoded_bitmap(decode_bitmap, good, 70, 2));
  EXPECT_FALSE(decoded_bitmap(decode_bitmap, good, 70, 3));   // wrong count
  EXPECT_FALSE(decoded_bitmap(decode_bitmap, good, 69, 2));   // a bit beyond the slice
  EXPECT_FALSE(decoded_bitmap(decode_bitmap, good, 200, 2));  // too short
  EXPECT_FALSE(decoded_bitmap(decode_bitmap, good, 64, 2));   // too long
  EXPECT_FALSE(decoded_bitmap(decode_bitmap, {}, 0, 1));
}

TEST(IndexCodec, RefusesOffsets) {
  const auto refused = [](std::initializer_list<int> bytes, std::size_t elements, std::size_t count) {
    return !decoded_offsets(decode_offsets, bytes_of(bytes), elements, count);
  };
  EXPECT_FALSE(refused({1, 0, 2, 0}, 3, 2));
  EXPECT_TRUE(refused({1, 0, 2, 0}, 2, 2));     // beyond the slice
  EXPECT_TRUE(refused({2, 0, 1, 0}, 3, 2));     // not ascending
  EXPECT_TRUE(refused({1, 0, 1, 0}, 3, 2));     // twice the same
  EXPECT_TRUE(refused({1, 0, 2, 0}, 3, 1));     // more bytes than elements
  EXPECT_TRUE(refused({1, 0, 2}, 3, 2));        // fewer
  EXPECT_TRUE(refused({1, 0, 2, 0, 3}, 9, 2));  // half an offset
}

TEST(IndexCodec, RefusesGaps) {
  const auto refused = [](const Bytes& bytes, std::size_t elements, std::size_t count) {
    return !decoded_offsets(decode_gaps, bytes, elements, count);
  };
  EXPECT_FALSE(refused(bytes_of({1, 0}), 3, 2));
  EXPECT_TRUE(refused(bytes_of({1, 0}), 2, 2));           // beyond the slice
  EXPECT_TRUE(refused(bytes_of({1, 0}), 3, 1));           // more elements than there should be
  EXPECT_TRUE(refused(bytes_of({1, 0}), 3, 3));           // fewer
  EXPECT_TRUE(refused(bytes_of({1, 0, 255}), 65536, 2));  // an escape without an element
  EXPECT_TRUE(refused(bytes_of({255}), 65536, 0));
  EXPECT_TRUE(refused(Bytes(300, std::byte{255}), 65536, 0));
  // The eight that are decoded together end one element beyond the slice.
  const Bytes eight(8, std::byte{0});
  EXPECT_FALSE(refused(eight, 8, 8));
  EXPECT_TRUE(refused(eight, 7, 8));
  EXPECT_TRUE(refused(eight, 8, 7));
}

TEST(IndexCodec, RefusesRuns) {
  const auto refused = [](std::initializer_list<int> bytes, std::size_t elements, std::size_t count) {
    return !decoded_bitmap(decode_runs, bytes_of(bytes), elements, count);
  };
  EXPECT_FALSE(refused({1, 0, 1, 0, 4, 0, 0, 0}, 5, 3));
  EXPECT_TRUE(refused({1, 0, 1, 0, 4, 0, 0, 0}, 4, 3));  // beyond the slice
  EXPECT_TRUE(refused({1, 0, 1, 0, 4, 0, 1, 0}, 5, 4));
  EXPECT_TRUE(refused({1, 0, 1, 0, 4, 0, 0, 0}, 5, 2));  // wrong count
  EXPECT_TRUE(refused({4, 0, 0, 0, 1, 0, 1, 0}, 5, 3));  // not ascending
  EXPECT_TRUE(refused({1, 0, 1, 0, 3, 0, 0, 0}, 5, 3));  // one run as two
  EXPECT_TRUE(refused({1, 0, 1, 0, 2, 0, 0, 0}, 5, 3));  // runs that overlap
  EXPECT_TRUE(refused({1, 0, 1, 0, 4, 0}, 5, 2));        // half a run
  EXPECT_TRUE(refused({255, 255, 255, 255}, 65536, 65536));
  EXPECT_FALSE(refused({0, 0, 255, 255}, 65536, 65536));
}

TEST(IndexCodec, RefusesRice) {
  const auto refused = [](const Bytes& bytes, std::size_t elements, std::size_t count) {
    return !decoded_offsets(decode_rice, bytes, elements, count);
  };
  const Bytes good = bytes_of({123, 0});  // 1, 5 and 6 of 16
  EXPECT_FALSE(refused(good, 16, 3));
  EXPECT_TRUE(refused(good, 16, 2));                          // more elements than there should be
  EXPECT_TRUE(refused(bytes_of({0, 0, 0, 0, 0, 1}), 16, 1));  // beyond the slice
  EXPECT_TRUE(refused(Bytes(20, std::byte{0}), 65536, 1));    // no element
  EXPECT_TRUE(refused({}, 16, 1));
  EXPECT_TRUE(refused(bytes_of({255, 1}), 8, 9));  // more than the slice has
  EXPECT_FALSE(refused(bytes_of({255}), 8, 8));
  EXPECT_TRUE(refused(bytes_of({255, 0}), 8, 8));  // a byte too many
  EXPECT_FALSE(refused(bytes_of({0x1f}), 5, 5));
  EXPECT_TRUE(refused(bytes_of({0x3f}), 5, 5));  // unused bits that are set
}

RC_GTEST_PROP(IndexCodecProperty, RoundTrips, ()) {
  const auto elements =
      *rc::gen::oneOf(rc::gen::inRange<std::size_t>(0, 700), rc::gen::just(kMostSliceElements));
  const auto density = *rc::gen::element(0.0, 0.001, 0.01, 0.1, 0.5, 0.95);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  expect_round_trips(random_set(elements, density, random));
  RC_ASSERT(!::testing::Test::HasFailure());
}

// Any bytes are refused, or give a set whose encoding are these bytes.
RC_GTEST_PROP(IndexCodecProperty, AnyBytes, ()) {
  const auto elements = *rc::gen::inRange<std::size_t>(0, 400);
  const auto count = *rc::gen::inRange<std::size_t>(0, 12);
  const auto raw = *rc::gen::container<std::vector<std::uint8_t>>(
      rc::gen::element<std::uint8_t>(0, 0, 0, 1, 2, 3, 8, 90, 254, 255));
  Bytes bytes;
  for (const std::uint8_t b : raw) bytes.push_back(std::byte{b});
  if (const auto set = decoded_bitmap(decode_bitmap, bytes, elements, count))
    RC_ASSERT(count_bits(*set) == count);
  if (const auto set = decoded_offsets(decode_offsets, bytes, elements, count))
    RC_ASSERT(as_offsets(set_of(elements, *set)) == bytes);
  if (const auto set = decoded_offsets(decode_gaps, bytes, elements, count)) {
    RC_ASSERT(are_offsets(*set, elements));
    RC_ASSERT(as_gaps(set_of(elements, *set)) == bytes);
  }
  if (const auto set = decoded_offsets(decode_rice, bytes, elements, count)) {
    RC_ASSERT(are_offsets(*set, elements));
    RC_ASSERT(as_rice(set_of(elements, *set)) == bytes);
  }
  if (const auto set = decoded_bitmap(decode_runs, bytes, elements, count)) {
    RC_ASSERT(count_bits(*set) == count);
    RC_ASSERT(as_runs({elements, {}, *set}) == bytes);
  }
}

}  // namespace
}  // namespace nzcl
