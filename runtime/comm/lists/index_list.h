// The indices of a caller's sparse stream: checked, in ascending order, and without duplicates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/indices.h"
#include "nzcl/types.h"
#include "runtime/operation/tile_input.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::comm {

/// A list that ascends is used where the caller has it. Any other one is sorted into memory of its own.
class IndexList {
 public:
  IndexList() = default;
  /// `blocks`: what every index is below of. Throws Error{invalid_argument} for an index that is not, and for
  /// one that is there twice unless `duplicates` are allowed. The caller's list must outlive this one.
  IndexList(const IndexSpan& indices, std::uint64_t blocks, bool duplicates);

  /// The ascending indices, without duplicates.
  const IndexSpan& ascending() const { return ascending_; }
  /// For a list that did not ascend: which of the caller's indices each place of the sorted list has,
  /// duplicates beside each other in the order in which they came. Otherwise empty.
  const std::vector<std::uint64_t>& order() const { return order_; }
  bool has_duplicates() const { return order_.size() > ascending_.size(); }

  /// Checks that blocks of the same index can be combined in their own type, of which the tensor has `count`
  /// elements. Only averages of uint8 may not be: their sums are divided before they are cut to 8 bits, and a
  /// contribution that had wrapped before would spoil that. Throws Error{invalid_argument} for such a sum.
  void check_sums(const void* values, std::uint64_t count, std::uint64_t block_elems, DataType type,
                  ReduceOp op) const;
  /// Copies the caller's blocks of values in ascending order, and combines those of the same index.
  std::vector<std::byte> sorted_values(const void* values, std::uint64_t block_elems, DataType type,
                                       ReduceOp op) const;
  /// Sets the bits of the indices.
  std::vector<std::uint64_t> bitmap(std::uint64_t blocks) const;
  /// Copies the list as a layout's tiles are asked for. The caller's values, which are in `region`, are used
  /// where they are if the list ascends. They lie `block_elems` apart, also where the tensor has fewer
  /// elements than that, and so the layout's blocks have.
  engine::ElementStream stream(const engine::SliceLayout& layout, const std::byte* values,
                               std::uint64_t block_elems, const verbs::MemoryRegion* region, DataType type,
                               ReduceOp op) const;

 private:
  void sort(const IndexSpan& indices, bool duplicates);
  engine::StreamUnits units(const engine::SliceLayout& layout) const;

  IndexSpan ascending_;
  std::vector<std::int64_t> own_;
  std::vector<std::uint64_t> order_;
  std::vector<std::uint64_t> group_ends_;  // by ascending index: the end of its places in order_
};

}  // namespace nzcl::comm
