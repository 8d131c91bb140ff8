// StreamUnits in each of the forms in which it keeps a list, compared with a plain search of that list.
#include "runtime/operation/stream_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/plan/slice_layout.h"

namespace nzcl::engine {
namespace {

/// Packed results of single elements, or of blocks, in tiles of some thousands of elements.
SliceLayout packed_layout(std::uint64_t elements, std::uint64_t block) {
  return SliceLayout({.count = elements,
                      .block_elems = block,
                      .owners = 2,
                      .slot_bytes = 34 << 10,
                      .tile_block_bytes = ~std::uint64_t{0},
                      .packed = true});
}

/// Some of `all` units, in ascending order: in a row, so that some tiles have many, and anywhere.
std::vector<std::int64_t> some_of(std::uint64_t all, std::size_t count, std::mt19937_64& random) {
  std::vector<std::int64_t> units;
  while (units.size() < count) {
    const std::uint64_t first = random() % all, end = std::min(all, first + 1 + random() % 40);
    for (std::uint64_t unit = first; unit < end; ++unit) units.push_back(static_cast<std::int64_t>(unit));
  }
  if (count > 0) units.push_back(static_cast<std::int64_t>(all - 1));
  std::ranges::sort(units);
  units.erase(std::ranges::unique(units).begin(), units.end());
  return units;
}

std::size_t before(const std::vector<std::int64_t>& units, std::uint64_t unit) {
  return static_cast<std::size_t>(std::ranges::lower_bound(units, static_cast<std::int64_t>(unit)) -
                                  units.begin());
}

void check_tile(const StreamUnits& kept, const std::vector<std::int64_t>& units, std::uint64_t tile,
                const SliceLayout& layout) {
  const std::uint64_t each = layout.tile_units(), first = tile * each;
  const std::size_t begin = before(units, first), end = before(units, first + each);
  ASSERT_EQ(kept.before(tile), begin);
  ASSERT_EQ(kept.before(tile + 1), end);
  if (begin < units.size()) {
    ASSERT_EQ(kept.tile_from(tile), static_cast<std::uint64_t>(units[begin]) / each);
  }
  std::vector<std::uint16_t> memory(end - begin);
  const auto offsets = kept.of_tile(tile, begin, memory);
  ASSERT_EQ(offsets.size(), end - begin);
  for (std::size_t i = 0; i < offsets.size(); ++i)
    ASSERT_EQ(first + offsets[i], static_cast<std::uint64_t>(units[begin + i]));
  const std::uint64_t tiles = std::min<std::uint64_t>(layout.tiles() - tile, 9);
  std::vector<std::uint32_t> list(before(units, (tile + tiles) * each) - begin);
  kept.list(tile, tiles, kept.of_tiles(tile, tiles), list.data());
  for (std::size_t i = 0; i < list.size(); ++i)
    ASSERT_EQ(first + list[i], static_cast<std::uint64_t>(units[begin + i]));
  if (kept.whole() == nullptr) return;
  for (std::size_t i = 0; i < list.size(); ++i)
    ASSERT_EQ(kept.whole()[begin + i], static_cast<std::uint64_t>(units[begin + i]));
}

void check(std::uint64_t elements, std::uint64_t block, std::size_t count) {
  SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(elements) + " elements in blocks of " +
               std::to_string(block));
  const SliceLayout layout = packed_layout(elements, block);
  ASSERT_TRUE(layout.tiled());
  std::mt19937_64 random(count);
  const auto units = some_of(layout.blocks(), count, random);
  StreamUnits kept(units.size(), layout);
  // In parts that may end within a tile.
  for (std::size_t at = 0, part = 0; at < units.size(); at += part) {
    part = std::min<std::size_t>(units.size() - at, 1 + random() % 1000);
    kept.append(std::span(units).subspan(at, part));
  }
  kept.end();
  ASSERT_EQ(kept.size(), units.size());
  ASSERT_EQ(kept.before(layout.tiles()), units.size());
  for (int i = 0; i < 300; ++i) {
    // Tiles anywhere, with units, and at the ends.
    const std::uint64_t drawn =
        units.empty() || i % 2 == 0
            ? random() % layout.tiles()
            : static_cast<std::uint64_t>(units[random() % units.size()]) / layout.tile_units();
    const std::uint64_t tile = i == 0 ? 0 : i == 1 ? layout.tiles() - 1 : drawn;
    check_tile(kept, units, tile, layout);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(StreamUnits, AreFoundInEveryForm) {
  for (const std::size_t count : {0, 1, 100, 3000, 100'000}) {
    check(100, 1, std::min<std::size_t>(count, 50));
    check(1'000'000, 1, count);  // cut into tiles, if these are many
    check(1'000'003, 7, std::min<std::size_t>(count, 90'000));
    check(3'000'000'000, 1, count);                 // beyond 31 bits
    check(std::uint64_t{1} << 38, 128, count);      // blocks that 32 bits hold
    check((std::uint64_t{1} << 40) + 5, 1, count);  // elements that they do not
  }
}

}  // namespace
}  // namespace nzcl::engine
