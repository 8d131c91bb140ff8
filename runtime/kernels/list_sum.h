// The sum, minimum or maximum over ranks of one slice of single elements, or of several in a row, for few
// ranks that hold few elements each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nzcl/types.h"

namespace nzcl {

/// One rank's contribution: ascending offsets, and the packed values of each of them. Offsets have 32 bits,
/// so that several slices in a row can be one list.
struct ElementList {
  std::span<const std::uint32_t> offsets;
  const std::byte* values = nullptr;
};

/// The most elements that all lists of one sum may have together.
inline constexpr std::size_t kMostListed = 65536;

/// The kernels for one type and operation. Lanes have the type in which sums are computed.
struct ListKernels {
  /// Makes the keys of a list, behind lists of `before` elements together. Lanes that do not fit a key are
  /// written to `lanes`, behind those of these lists.
  void (*enter)(const ElementList& list, std::size_t before, std::byte* lanes, std::uint64_t* keys) noexcept;
  /// Combines the lanes of keys that have the same offset, in their order, and writes the offsets and the
  /// packed results. An element that fewer than `ranks` ranks have is combined with a zero. `spare` has room
  /// for the results as lanes, and `packed` for all of them.
  void (*combine)(std::span<const std::uint64_t> keys, const std::byte* lanes, int ranks, std::byte* spare,
                  std::uint32_t* offsets, std::byte* packed) noexcept;
};

/// The kernels for the best instruction set of this CPU. Null only for values outside the enums.
const ListKernels* list_kernels(DataType type, ReduceOp op) noexcept;

/// Merges the ranks' lists, and combines what ranks have of the same element, in ascending order of ranks.
/// The result has the same bits as if reduce_kernel() had summed the dense slices. Its time depends on the
/// elements that the ranks hold and not on the size of the slice. What was merged so far is merged again with
/// the list of each further rank, so it is good for few ranks only. One thread at a time may use it. Only the
/// constructor allocates; it throws std::bad_alloc.
///
/// What is merged are *keys*: an offset, and behind it the value as a lane of 32 bits, or the number of its
/// lane. So a step of the merge is a comparison of two integers for all types, and has no branch. Equal
/// offsets end up in the order of the ranks.
class ListSum {
 public:
  ListSum();

  /// Begins a sum. `ranks` is the number of the communicator's ranks.
  void start(DataType type, ReduceOp op, int ranks);
  /// Merges the list of the next rank, in ascending order of ranks. Those that hold nothing need not be
  /// mentioned. All lists have at most kMostListed elements together. The list is not needed any more when
  /// this returns.
  void add(const ElementList& list);
  /// Returns the number of elements in the union of the lists.
  std::size_t unite() const;
  /// Writes the offsets of the union, and the results, packed. Both have room for unite() of them.
  void emit(std::span<std::byte> packed, std::uint32_t* offsets);

 private:
  static constexpr std::size_t kMostLaneBytes = sizeof(std::uint64_t);
  /// The keys of all lists so far, those of the next one, and where the two are merged.
  std::unique_ptr<std::uint64_t[]> keys_, next_, merged_;
  std::unique_ptr<std::byte[]> lanes_, spare_;
  const ListKernels* kernels_ = nullptr;
  std::size_t count_ = 0;  // of keys
  int ranks_ = 0;
};

}  // namespace nzcl
