// The sum, minimum or maximum over ranks of one slice of single elements, for few ranks that hold few
// elements each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nzcl/types.h"

namespace nzcl {

/// One rank's contribution to a slice: ascending offsets, and a packed value for each of them.
struct ElementList {
  std::span<const std::uint16_t> offsets;
  const std::byte* values = nullptr;
};

/// The most elements that all lists of one slice may have together.
inline constexpr std::size_t kMostListed = 4096;

/// The kernels for one type and operation. Lanes have the type in which sums are computed.
struct ListKernels {
  std::size_t lane_bytes;
  /// Converts packed values to lanes and returns where the lanes are. That is `lanes`, or `values` itself if
  /// the two have the same format.
  const std::byte* (*widen)(const std::byte* values, std::size_t count, std::byte* lanes) noexcept;
  /// Merges what was merged so far (lanes at ascending offsets) with the list of a further rank. Elements
  /// that only one of the two has are combined with a zero. Returns the number of offsets of the result. The
  /// outputs have room for all elements of both, and do not overlap the inputs.
  std::size_t (*merge)(std::span<const std::uint16_t> offsets, const std::byte* lanes,
                       const ElementList& next, std::uint16_t* to_offsets, std::byte* to_lanes) noexcept;
  /// Turns lanes into packed results. `ranks` is the divisor of avg. `with_zero` says that some rank holds
  /// nothing, so that every element is combined with a zero.
  void (*finish)(const std::byte* lanes, std::size_t count, int ranks, bool with_zero,
                 std::byte* packed) noexcept;
};

/// The kernels for the best instruction set of this CPU. Null only for values outside the enums.
const ListKernels* list_kernels(DataType type, ReduceOp op) noexcept;

/// Merges the ranks' lists one after the other, in ascending order of ranks. The result has the same bits as
/// if reduce_kernel() had summed the dense slices. Its time depends on the elements that the ranks hold and
/// not on the size of the slice. The union so far is merged again with the list of each further rank, so it
/// is good for few ranks only. One thread at a time may use it. Only the constructor allocates; it throws
/// std::bad_alloc.
class ListSum {
 public:
  ListSum();

  /// Sums the lists of the ranks that hold anything, which are given in ascending order of ranks and have at
  /// most kMostListed elements together. `ranks` is the number of the communicator's ranks. If there is only
  /// one list, its memory must live until emit(); otherwise the lists are not needed any more when this
  /// returns.
  void sum(DataType type, ReduceOp op, int ranks, std::span<const ElementList> lists);

  /// The offsets of the union, valid until the next sum().
  std::span<const std::uint16_t> offsets() const { return offsets_; }
  /// Writes the results of the elements in offsets(), packed. `packed` has room for them.
  void emit(std::span<std::byte> packed) const;

 private:
  static constexpr std::size_t kMostLaneBytes = sizeof(std::uint64_t);
  /// Each has two halves, because a merge reads from one and writes to the other.
  std::unique_ptr<std::uint16_t[]> offset_memory_;
  std::unique_ptr<std::byte[]> lane_memory_;
  const ListKernels* kernels_ = nullptr;
  std::span<const std::uint16_t> offsets_;
  const std::byte* lanes_ = nullptr;
  int ranks_ = 0;
  bool with_zero_ = false;
};

}  // namespace nzcl
