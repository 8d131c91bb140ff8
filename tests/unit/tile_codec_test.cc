// Tiles from sets to bytes and back: every code, forced and free, on sets of every density.
#include "runtime/tile/tile_codec.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/index_codec.h"
#include "runtime/tile/tile_blocks.h"

namespace nzcl::engine {
namespace {

using wire::IndexCode;

/// A set of units of a tile.
struct Set {
  std::size_t elements = 0;  // units of the tile; single elements, unless a test says otherwise
  std::vector<std::uint64_t> bitmap;
  std::vector<std::uint16_t> offsets;

  TilePart part(bool as_offsets, const std::byte* values) const {
    TilePart p{
        .units = offsets.size(), .count = offsets.size(), .bitmap = {}, .offsets = {}, .values = values};
    if (p.units == 0) return p;
    if (p.units == elements) {
      p.form = TilePart::Form::all;
    } else if (as_offsets) {
      p.form = TilePart::Form::offsets;
      p.offsets = offsets;
    } else {
      p.form = TilePart::Form::bitmap;
      p.bitmap = bitmap;
    }
    return p;
  }
};

Set make_set(std::size_t elements, double density, std::size_t run, unsigned seed) {
  std::mt19937 random(seed);
  Set s{.elements = elements, .bitmap = std::vector<std::uint64_t>(words_for(elements)), .offsets = {}};
  for (std::size_t i = 0; i < elements; i += run) {
    if (std::uniform_real_distribution<>()(random) >= density) continue;
    for (std::size_t e = i; e < std::min(i + run, elements); ++e) {
      set_bit(std::span(s.bitmap), e);
      s.offsets.push_back(static_cast<std::uint16_t>(e));
    }
  }
  return s;
}

CodedTile code(const TilePart& part, std::size_t units, const CodeRules& rules, TileScratch& scratch) {
  constexpr auto kType = DataType::float32;
  return code_tile(part, units, kType, values_in(wire::ValueCode::as_is, kType, part.count), rules, scratch);
}

void write(const CodedTile& tile, std::uint64_t at, TileScratch& scratch, std::span<std::byte> payload) {
  std::byte* const to = payload.data() + at;
  if (tile.part.count > 0) std::memcpy(to + tile.values_at(at), tile.part.values, tile.values.bytes);
  write_tile(tile, at, scratch, to);
}

/// Writes the tile as senders do, and reads it back as receivers do. The units of the set have `unit`
/// elements, of which the last one lacks `missing`.
void check(const Set& set, bool as_offsets, const CodeRules& rules, std::uint64_t at, std::uint64_t unit,
           std::uint64_t missing) {
  const wire::TileShape shape(set.elements * unit - missing, unit);
  std::vector<float> values(set.offsets.size() * unit + 1);
  std::iota(values.begin(), values.end(), 1.0f);
  TileScratch scratch(1 << 18), other(1 << 18);
  TilePart part = set.part(as_offsets, std::as_bytes(std::span(values)).data());
  part.count = shape.elements_in(part.units, test_bit(set.bitmap, set.elements - 1));
  const CodedTile coded = code(part, set.elements, rules, scratch);
  RC_ASSERT(coded.index.index_bytes <= bitmap_bytes(set.elements));
  RC_ASSERT(coded.bytes(at) <= coded.most_bytes());
  std::vector<std::byte> payload(at + coded.bytes(at), std::byte{1});
  write(coded, at, scratch, payload);
  const char* wrong = nullptr;
  const auto tile = wire::read_tile(payload, at, DataType::float32, shape, wrong);
  RC_ASSERT(tile.has_value());
  RC_ASSERT(tile->end == payload.size());
  const auto read = read_part(*tile, shape, other);
  RC_ASSERT(read.has_value());
  RC_ASSERT(read->units == set.offsets.size());
  RC_ASSERT(read->count == part.count);
  std::vector<std::uint16_t> offsets(kMostSliceElements);
  const auto found = engine::as_offsets(*read, offsets);
  RC_ASSERT(std::equal(found.begin(), found.end(), set.offsets.begin(), set.offsets.end()));
  if (read->count > 0) RC_ASSERT(std::memcmp(read->values, values.data(), read->count * 4) == 0);
}

TEST(TileCodec, SetsThatAllRanksDrawTakeNoBytes) {
  const Set set = make_set(3000, 0.02, 1, 7);
  const std::vector<float> values(set.offsets.size(), 2.0f);
  TileScratch scratch(1 << 18);
  TilePart part = set.part(true, std::as_bytes(std::span(values)).data());
  part.drawn = true;
  const CodedTile coded = code(part, set.elements, {.forced = {}, .coded = true}, scratch);
  EXPECT_EQ(coded.index.code, IndexCode::drawn);
  std::vector<std::byte> payload(coded.bytes(0));
  EXPECT_EQ(payload.size(), 4 + 4 * part.count);
  write(coded, 0, scratch, payload);
  const char* wrong = nullptr;
  const auto tile = wire::read_tile(payload, 0, DataType::float32, set.elements, wrong);
  ASSERT_TRUE(tile.has_value()) << wrong;
  EXPECT_FALSE(read_part(*tile, set.elements, scratch).has_value()) << "nobody has drawn it here";
  EXPECT_FALSE(read_part(*tile, set.elements, scratch, {}, std::span(set.offsets).first(part.count - 1)));
  const auto read = read_part(*tile, set.elements, scratch, {}, set.offsets);
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->drawn);
  EXPECT_TRUE(std::ranges::equal(read->offsets, set.offsets));
}

RC_GTEST_PROP(TileCodec, EverySetComesBackInEveryCode, ()) {
  const auto elements = *rc::gen::inRange<std::size_t>(1, 5000);
  const auto unit = *rc::gen::element<std::uint64_t>(1, 1, 2, 3, 8, 13);
  const auto missing = *rc::gen::inRange<std::uint64_t>(0, unit);
  const double density = *rc::gen::element(0.0, 0.001, 0.02, 0.1, 0.5, 0.98, 1.0);
  const auto run = *rc::gen::element<std::size_t>(1, 1, 3, 40);
  const Set set = make_set(elements, density, run, *rc::gen::arbitrary<unsigned>());
  const bool as_offsets = *rc::gen::arbitrary<bool>();
  const auto at = 4 * *rc::gen::inRange<std::uint64_t>(0, 5);
  for (const auto& forced :
       {std::optional<IndexCode>(), std::optional(IndexCode::bitmap), std::optional(IndexCode::offsets),
        std::optional(IndexCode::gaps), std::optional(IndexCode::runs), std::optional(IndexCode::rice),
        std::optional(IndexCode::all)}) {
    for (const bool shortest : {false, true})
      check(set, as_offsets, {.forced = forced, .shortest = shortest}, at, unit, missing);
  }
}

RC_GTEST_PROP(TileBlocks, AreThoseWithAnElement, ()) {
  const auto block = *rc::gen::element<std::uint64_t>(1, 2, 3, 4, 7, 8, 15, 16, 32, 64, 100);
  const auto elements = *rc::gen::inRange<std::size_t>(1, 9000);
  const Set set =
      make_set(elements, *rc::gen::element(0.0, 0.01, 0.3, 1.0), 1, *rc::gen::arbitrary<unsigned>());
  TileScratch scratch(8);
  const TileBlocks blocks(block);
  std::vector<std::uint64_t> expected(words_for(blocks.blocks(elements))), marked(expected.size());
  for (const std::uint16_t offset : set.offsets) set_bit(std::span(expected), offset / block);
  RC_ASSERT(blocks.mark(set.bitmap, marked) == count_bits(expected));
  RC_ASSERT(marked == expected);
  for (const bool as_offsets : {false, true})
    RC_ASSERT(blocks.count(set.part(as_offsets, nullptr), elements, scratch) == count_bits(expected));
}

// A tile of 3 units of 4 elements, of which the last one has 2.
TEST(TileCodec, TheShortUnitIsCountedWhereItIs) {
  const wire::TileShape shape(10, 4);
  TileScratch scratch(1 << 10);
  const auto part_of = [&](std::uint32_t count, IndexCode code, std::vector<std::uint16_t> index) {
    wire::Tile tile{.count = count, .index_code = code, .values = {}, .index = {}};
    tile.index = std::as_bytes(std::span(index));
    return read_part(tile, shape, scratch);
  };
  EXPECT_EQ(part_of(4, IndexCode::offsets, {1})->units, 1u);
  EXPECT_EQ(part_of(2, IndexCode::offsets, {2})->units, 1u);
  EXPECT_EQ(part_of(6, IndexCode::offsets, {0, 2})->units, 2u);
  EXPECT_EQ(part_of(6, IndexCode::bitmap, {5, 0, 0, 0})->units, 2u);
  EXPECT_EQ(part_of(10, IndexCode::runs, {0, 2})->units, 3u);
  EXPECT_EQ(part_of(10, IndexCode::all, {})->units, 3u);
  EXPECT_FALSE(part_of(4, IndexCode::offsets, {2})) << "the last unit has 2 elements";
  EXPECT_FALSE(part_of(2, IndexCode::offsets, {1})) << "this one has 4";
  EXPECT_FALSE(part_of(6, IndexCode::bitmap, {3, 0, 0, 0}));
  EXPECT_FALSE(part_of(8, IndexCode::bitmap, {5, 0, 0, 0}));
  EXPECT_FALSE(part_of(8, IndexCode::runs, {1, 1}));
  EXPECT_FALSE(part_of(6, IndexCode::gaps, {0x0000}));
}

TEST(TileShape, CountsUnits) {
  const wire::TileShape shape(10, 4), whole(12, 4);
  EXPECT_EQ(shape.units(), 3u);
  EXPECT_EQ(shape.missing(), 2u);
  EXPECT_EQ(shape.elements_in(2, false), 8u);
  EXPECT_EQ(shape.elements_in(2, true), 6u);
  for (const std::uint64_t count : {0, 2, 4, 6, 8, 10}) EXPECT_TRUE(shape.can_hold(count)) << count;
  for (const std::uint64_t count : {1, 3, 5, 7, 9, 11, 12, 14}) EXPECT_FALSE(shape.can_hold(count)) << count;
  for (const std::uint64_t count : {2, 6, 10}) EXPECT_FALSE(whole.can_hold(count)) << count;
  EXPECT_EQ(whole.missing(), 0u);
}

TEST(TileBlocks, ReciprocalsAreExact) {
  for (std::uint64_t block = 1; block <= 1024; ++block) {
    for (std::uint64_t e = 0; e < kMostSliceElements; e += block == 1 ? 1 : block - 1)
      ASSERT_EQ(TileBlocks(block).block_of(static_cast<std::uint16_t>(e)), e / block);
  }
}

TEST(TileCodec, TheShortestCodeIsChosenWhereBytesCount) {
  TileScratch scratch(8);
  const auto chosen = [&](double density, std::size_t run, bool shortest) {
    const Set set = make_set(32768, density, run, 7);
    return choose_code(set.part(false, nullptr), set.elements, {.forced = {}, .shortest = shortest}, scratch)
        .code;
  };
  EXPECT_EQ(chosen(0, 1, true), IndexCode::none);
  EXPECT_EQ(chosen(1, 1, true), IndexCode::all);
  EXPECT_EQ(chosen(0.0002, 1, true), IndexCode::rice);
  EXPECT_EQ(chosen(0.01, 1, true), IndexCode::rice);
  EXPECT_EQ(chosen(0.01, 1, false), IndexCode::offsets);
  EXPECT_EQ(chosen(0.05, 1, true), IndexCode::rice);
  EXPECT_EQ(chosen(0.5, 1, true), IndexCode::bitmap);
  EXPECT_EQ(chosen(0.1, 64, true), IndexCode::runs);
  EXPECT_EQ(chosen(0.1, 64, false), IndexCode::runs);
}

TEST(TileCodec, IsWithinATenthOfTheEntropyBoundOverLinks) {
  TileScratch scratch(8);
  for (const double d : {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5}) {
    const Set set = make_set(32768, d, 1, 11);
    const CodedTile tile =
        code(set.part(false, nullptr), set.elements, {.forced = {}, .shortest = true}, scratch);
    const double n = static_cast<double>(set.offsets.size()), share = n / 32768;
    const double entropy = -share * std::log2(share) - (1 - share) * std::log2(1 - share);
    const double bound = 4 * n + entropy * 32768 / 8;
    EXPECT_LE(static_cast<double>(tile.bytes(0)), 1.1 * bound) << "density " << d;
  }
}

}  // namespace
}  // namespace nzcl::engine
