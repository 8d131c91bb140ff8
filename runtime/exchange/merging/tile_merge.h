// Merges two ranks' partial sums of a tile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nzcl/types.h"
#include "runtime/kernels/list_sum.h"
#include "runtime/kernels/merge.h"
#include "runtime/tile/tile_codec.h"
#include "runtime/tile/tile_list.h"

namespace nzcl::engine {

/// A partial sum is in the type that partial_type() says. An element that it lacks is a zero of all its
/// ranks, so combining two of them is a sum of two ranks: that gives minima, maxima and minus zero right
/// without any record of who held what. For one thread.
class TileMerge {
 public:
  /// `most_value_bytes`: of a tile's values, as wide as they can be.
  explicit TileMerge(std::size_t most_value_bytes)
      : scratch_(most_value_bytes), list_offsets_(new std::uint32_t[kMostListed]) {}

  /// Combines `a`, which is of lower ranks, with `b`. The scratches are those that the parts were read with,
  /// and may be used. `values` has room for the values of both, or for all elements if these are fewer. The
  /// result's values are there; its index set is valid until the next merge.
  TilePart merge(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch, const TilePart& b,
                 TileScratch& b_scratch, const wire::TileShape& shape, std::span<std::byte> values);

  /// The result's index set may lie in this memory, so whoever codes or places the result needs it.
  TileScratch& scratch() { return scratch_; }

 private:
  TilePart merge_lists(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                       const TilePart& b, TileScratch& b_scratch, std::span<std::byte> values);
  TilePart merge_elements(DataType type, ReduceOp op, const TilePart& a, const TilePart& b,
                          const wire::TileShape& shape, std::span<std::byte> values);
  TilePart merge_units(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                       const TilePart& b, TileScratch& b_scratch, const wire::TileShape& shape,
                       std::span<std::byte> values);
  std::size_t collect_sources(const TilePart& a, std::span<const std::uint64_t> a_bitmap, const TilePart& b,
                              std::span<const std::uint64_t> b_bitmap);

  TileScratch scratch_;
  ListSum list_sum_;
  std::array<ElementList, 2> lists_;
  std::unique_ptr<std::uint32_t[]> list_offsets_;  // of lists_
  std::array<MergeSource, 2> sources_;
};

/// Converts `count` values of the tensor's type to the type of its partial sums.
void widen_values(DataType type, DataType partial, const std::byte* values, std::size_t count,
                  std::byte* to) noexcept;

/// Makes results of partial sums: divides them if the operation is an average, and converts them to the
/// tensor's type. The sums are used up. `to` is where they lie, or does not overlap them; it must be another
/// place if partial sums have another type.
void finish_values(DataType type, ReduceOp op, int ranks, std::byte* sums, std::size_t count,
                   std::byte* to) noexcept;

}  // namespace nzcl::engine
