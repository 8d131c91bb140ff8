// Which blocks of a tile have any of its units.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/tile/tile_part.h"

namespace nzcl::engine {

/// Counts and marks the blocks of a tile that have a unit of a part. It is for blocks of one number of units
/// (`block_units`, 1 or more), as a tensor has them, and cheap to make.
class TileBlocks {
 public:
  explicit TileBlocks(std::uint64_t block_units);

  /// The number of blocks of a tile of `units` units.
  std::uint64_t blocks(std::uint64_t units) const { return (units + block_ - 1) / block_; }
  /// The number of the block that a unit is in.
  std::uint64_t block_of(std::uint16_t unit) const { return unit * reciprocal_ >> 32; }

  /// Returns how many blocks the part has a unit of. `units` are those of the whole tile.
  std::uint64_t count(const TilePart& part, std::uint64_t units, TileScratch& scratch) const;
  /// Sets `bits`, one for each block of the tile, to the blocks that have a unit in the bitmap, and returns
  /// how many these are. If blocks are units, `bits` may be the bitmap itself.
  std::uint64_t mark(std::span<const std::uint64_t> bitmap, std::span<std::uint64_t> bits) const;

 private:
  std::uint64_t count_listed(std::span<const std::uint16_t> offsets) const;

  std::uint64_t block_;
  std::uint64_t reciprocal_;  // ceil(2^32 / block_): exact for all numbers of units of a tile
  int log2_;                  // the logarithm of block_, or -1 if that is not a power of two up to 64
};

}  // namespace nzcl::engine
