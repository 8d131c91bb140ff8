// The sum, minimum or maximum over a few ranks of one slice of single elements, of which each holds few.
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
  /// Converts packed values to lanes, and returns where these are: in `lanes`, or where the values are if
  /// nothing has to be converted.
  const std::byte* (*widen)(const std::byte* values, std::size_t count, std::byte* lanes) noexcept;
  /// Merges lanes at ascending offsets with a further rank's list, and returns how many offsets that makes.
  /// What is in one of the two alone is combined with a zero. The outputs have room for both together, and
  /// do not overlap the inputs.
  std::size_t (*merge)(std::span<const std::uint16_t> offsets, const std::byte* lanes,
                       const ElementList& next, std::uint16_t* to_offsets, std::byte* to_lanes) noexcept;
  /// Makes results of lanes, packed, for `ranks` ranks. `with_zero`: some rank holds nothing.
  void (*finish)(const std::byte* lanes, std::size_t count, int ranks, bool with_zero,
                 std::byte* packed) noexcept;
};

/// The kernels for the best instruction set of this CPU. Null only for values outside the enums.
const ListKernels* list_kernels(DataType type, ReduceOp op) noexcept;

/// Merges the ranks' lists one after the other in ascending order of ranks, with the bits that
/// reduce_kernel() gives for the dense slices. It looks at nothing but the elements that are held, so its
/// time does not depend on the size of the slice; but the union is merged again with each further rank, so it
/// is for few of them. One thread at a time; only the constructor allocates, and it throws std::bad_alloc.
class ListSum {
 public:
  ListSum();

  /// `lists` are those of the ranks that hold anything, in ascending order; together they have at most
  /// kMostListed elements. They are not needed any more afterwards, unless there is only one. `ranks` is the
  /// number of the communicator's ranks.
  void sum(DataType type, ReduceOp op, int ranks, std::span<const ElementList> lists);

  /// The union, valid until the next sum().
  std::span<const std::uint16_t> offsets() const { return offsets_; }
  /// Writes the results of the elements in offsets(), packed. `packed` has room for them.
  void emit(std::span<std::byte> packed) const;

 private:
  static constexpr std::size_t kMostLaneBytes = sizeof(std::uint64_t);
  /// Two of each, because a merge cannot write where it reads.
  std::unique_ptr<std::uint16_t[]> offset_memory_;
  std::unique_ptr<std::byte[]> lane_memory_;
  const ListKernels* kernels_ = nullptr;
  std::span<const std::uint16_t> offsets_;
  const std::byte* lanes_ = nullptr;
  int ranks_ = 0;
  bool with_zero_ = false;
};

}  // namespace nzcl
