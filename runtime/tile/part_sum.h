// Sums what several ranks hold of one tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/types.h"
#include "runtime/kernels/element_accumulator.h"
#include "runtime/kernels/list_sum.h"
#include "runtime/kernels/merge.h"
#include "runtime/kernels/unit_list_sum.h"
#include "runtime/tile/tile_part.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// Takes the ranks' parts of a tile in the order of the ranks, unites their index sets, and sums their values
/// where the result belongs:
///
///   start(), then add() for each rank, then unite(), then write().
///
/// There are five ways to sum (runtime/kernels/README.md says when each is fast); all give the same bits,
/// which are those of reduce_kernel() on the dense tiles. An element that a part lacks counts as a zero of
/// its rank, or of all its ranks if the part is a sum itself. One thread at a time may use it; only the
/// constructor allocates.
class PartSum {
 public:
  /// `ranks` is the number of parts of each tile, and `most_value_bytes` the largest size of its values.
  PartSum(std::size_t ranks, std::size_t most_value_bytes);

  /// Begins a tile. One that was begun before is forgotten.
  void start(DataType type, ReduceOp op, const wire::TileShape& shape);
  /// Memory that the next part may lie in.
  TileScratch& next_scratch() { return scratches_[keeps_parts() ? parts_.size() : 0]; }
  /// Adds the next rank's part. It has to stay as it is until write().
  void add(const TilePart& part);
  /// Returns the union of the parts, without values. It is valid until start(), and may lie in scratch().
  /// Precondition: every rank's part was added.
  const TilePart& unite();
  /// Writes the sums of the union's elements, packed, once. There is room for them at `to`, which may be the
  /// values of scratch().
  void write(std::byte* to);

  /// Memory beside the union, for whoever codes or places it.
  TileScratch& scratch() { return scratch_; }
  /// What sums lists of single elements, and of longer units, for whoever sums several tiles in a row at
  /// once.
  ListSum& lists() { return lists_; }
  UnitListSum& unit_lists() { return unit_lists_; }
  /// Memory for the offsets of a rank's list. Precondition: there are at most kMergeRanks ranks.
  std::span<std::uint32_t> list_of(std::size_t rank) { return scratches_[rank].list(); }

 private:
  enum class Way : std::uint8_t { nothing, whole, merge, units, lists, accumulate };

  /// Whether parts are kept until all are there. Otherwise each is added to the accumulator as it comes.
  bool keeps_parts() const { return scratches_.size() == ranks_; }
  Way choose_way() const;
  void accumulate(const TilePart& part, TileScratch& scratch);
  void unite_lists();
  void unite_accumulated();
  void unite_bitmaps();
  std::span<MergeSource> sources();

  const std::size_t ranks_;
  DataType type_{};
  ReduceOp op_{};
  wire::TileShape shape_;
  Way way_ = Way::nothing;
  TilePart union_;
  std::vector<TilePart> parts_;         // by rank, if they are kept
  std::vector<TileScratch> scratches_;  // theirs; otherwise one for all
  TileScratch scratch_;
  std::vector<MergeSource> sources_;
  std::vector<const std::byte*> pointers_;
  ListSum lists_;
  UnitListSum unit_lists_;
  ElementAccumulator accumulator_;
};

}  // namespace nzcl::engine
