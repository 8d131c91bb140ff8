// Where the result of a tiled operation goes, tile by tile.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nzcl/indices.h"
#include "runtime/base/spare_memory.h"
#include "runtime/kernels/list_sum.h"
#include "runtime/kernels/packed_output.h"
#include "runtime/operation/packed_overflow.h"
#include "runtime/operation/packed_positions.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_blocks.h"
#include "runtime/tile/tile_codec.h"

namespace nzcl::engine {

/// Puts the tiles of a result into place: into a whole tensor, or packed, one block behind the other, with
/// the indices of the blocks. Its memory follows the result: one bit for each block of a dense result. Of a
/// packed one it keeps the indices of as many blocks as the output has room for, unless the caller has given
/// memory for them; of that only what is used is ever touched. Nothing of a packed result is proportional to
/// the tensor.
///
/// A tile's place in a packed output depends on the tiles before it: on the blocks of all slices before its
/// own, and on those of its own slice that have been placed, because the tiles of a slice are placed one
/// after the other, on one lane. note() makes known how many blocks tiles have as soon as their message has
/// arrived, so that other lanes can place later slices.
class TileOutput {
 public:
  /// `dense`: the tensor, which is also the input if `in_place`.
  TileOutput(const SliceLayout& layout, std::byte* dense, bool in_place);
  /// `packed` and `indices`, which may be null, have room for `capacity` blocks. What does not fit goes to
  /// `overflow`, unless that is null. Where indices are kept, it is in memory of `spare`, unless that is
  /// null.
  TileOutput(const SliceLayout& layout, std::byte* packed, std::uint64_t capacity, IndexBuffer indices,
             PackedOverflow* overflow, int lanes, SpareMemory* spare);

  /// Sets whose bells are rung when a tile can be placed that a lane has asked for.
  void ring(LaneBells* bells) { positions_.ring(bells); }
  /// Says how many blocks a packed result has in a tile, or that there are none in so many tiles in a row.
  /// Precondition: needs_note().
  void note(std::uint64_t tile, std::uint64_t tiles, std::uint64_t blocks);
  /// Returns true if note() has to be called for the tile, which is the next one of its slice.
  bool needs_note(std::uint64_t tile) const {
    return packed_ && progress_[layout_.slice_of_tile(tile)].noted_tiles == layout_.place_in_slice(tile);
  }
  /// Returns true if the tile and all before it in its slice need no note() any more.
  bool is_noted(std::uint64_t tile) const {
    return !packed_ || progress_[layout_.slice_of_tile(tile)].noted_tiles > layout_.place_in_slice(tile);
  }
  /// Returns true if the tile can be placed now. `lane` is the number of the caller's lane, which is rung
  /// later if this returns false.
  bool placeable(std::uint64_t tile, int lane) {
    return !packed_ || positions_.before(layout_.slice_of_tile(tile), lane).has_value();
  }
  /// Puts so many tiles into place, from this one on, of which no rank has anything. They are placeable at
  /// any time.
  void place_empty(std::uint64_t tile, std::uint64_t tiles);

  /// Puts a tile into place and returns how many blocks it has, or nothing if its index set is malformed.
  /// Preconditions: placeable(), and those before it in its slice are in place. What does not fit a packed
  /// output is left out. `drawn` is as in read_part().
  std::optional<std::uint64_t> place(std::uint64_t tile, const wire::Tile& bytes, int lane,
                                     TileScratch& scratch, std::span<const std::uint16_t> drawn = {});
  /// The same for tiles that are in one list, from this one on.
  std::optional<std::uint64_t> place_list(std::uint64_t tile, const wire::Tile& list, int lane,
                                          TileScratch& scratch);
  /// The same for so many tiles whose result was made here, as one list. It may lie in the scratch.
  void place_list(std::uint64_t tile, std::uint64_t tiles, const ElementList& list, int lane,
                  TileScratch& scratch);
  /// The same for a result that was made here. The part may lie in the scratch.
  std::uint64_t place(std::uint64_t tile, const TilePart& part, int lane, TileScratch& scratch) {
    return packed_ ? place_packed(tile, part, lane, scratch) : place_dense(tile, part, scratch);
  }
  /// Returns how many blocks the tile has, or nothing if its index set is malformed.
  std::optional<std::uint64_t> count(std::uint64_t tile, const wire::Tile& bytes, TileScratch& scratch) const;

  // --- After success.
  /// Of a dense result.
  std::span<const std::uint64_t> union_bitmap() const;
  /// Of a packed result. They are read where they were written, which may be the caller's memory.
  std::vector<std::int64_t> packed_indices() const;

 private:
  /// How far a slice of a packed result has come. Only the slice's lane touches it.
  struct Progress {
    std::uint64_t noted_tiles = 0, noted_blocks = 0, placed_blocks = 0;
  };
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::span<std::uint64_t> words_of(std::uint64_t tile);
  std::uint64_t place_dense(std::uint64_t tile, const TilePart& part, TileScratch& scratch);
  std::uint64_t place_packed(std::uint64_t tile, const TilePart& part, int lane, TileScratch& scratch);
  std::uint64_t position_of(std::uint64_t tile, int lane);
  bool fits_at_once(std::uint64_t tile, std::size_t blocks, int lane);
  void put_list(std::uint64_t tile, std::span<const std::uint32_t> numbers, const std::byte* values,
                int lane);
  void place_in_tiles(std::uint64_t tile, std::uint64_t tiles, std::span<const std::uint32_t> numbers,
                      const std::byte* values, int lane, TileScratch& scratch);
  void place_whole_blocks(std::uint64_t tile, std::span<const std::uint16_t> offsets, const std::byte* values,
                          std::uint64_t position);
  std::size_t place_block(std::uint64_t tile, std::uint64_t number, std::span<const std::uint16_t> offsets,
                          const std::byte* values, std::uint64_t position);
  void put_indices(std::uint64_t tile, std::uint64_t position, std::span<const std::uint16_t> blocks);
  void put_values(std::uint64_t position, std::span<const std::byte> values);
  /// How the packed output is stored from a position on.
  StoreTo where(std::uint64_t position) const {
    return position * layout_.block_bytes() < kCachedOutputBytes ? StoreTo::cache : StoreTo::memory;
  }

  const SliceLayout layout_;
  const TileBlocks blocks_of_;
  std::byte* const base_;
  const bool packed_, in_place_;
  const StoreTo dense_to_ = StoreTo::cache;  // how a dense output is stored
  const std::uint64_t capacity_ = 0;
  const std::uint64_t most_blocks_ = 0;  // that a packed output has room for
  SpareMemory::Piece kept_;              // where indices go if the caller has no memory for them
  const IndexBuffer indices_;
  PackedOverflow* const overflow_ = nullptr;
  std::unique_ptr<std::uint64_t, Free> words_;  // of a dense result: the union's blocks as bits
  PackedPositions positions_;                   // of the slices of a packed result
  std::vector<Progress> progress_;              // by slice
};

}  // namespace nzcl::engine
