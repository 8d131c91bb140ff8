// The sum, minimum or maximum over ranks of one slice of single elements, or of several in a row, for few
// ranks that hold few elements each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// The most elements that all lists of one sum may have together, and the most lists.
inline constexpr std::size_t kMostListed = 65536;
inline constexpr std::size_t kMostLists = 16;

/// A list on its way through a merge: offsets, and for each of them a *word*, which is its value as a lane of
/// 32 bits, or the number of its lane where lanes are longer. Words need not be aligned.
struct ListEntries {
  const std::uint32_t* offsets = nullptr;
  const std::byte* words = nullptr;
  std::size_t count = 0;

  std::uint32_t word(std::size_t i) const {
    std::uint32_t word = 0;
    std::memcpy(&word, words + i * sizeof word, sizeof word);
    return word;
  }
  ListEntries part(std::size_t begin, std::size_t end) const {
    return {offsets + begin, words + begin * sizeof(std::uint32_t), end - begin};
  }
};

/// Where the union of lists goes: there is room for `count` offsets, and as many packed results.
struct ListUnion {
  std::size_t lists;   // that are merged
  int ranks;           // of the communicator
  std::uint32_t base;  // what the lists' offsets are counted from
  std::size_t count;
  std::uint32_t* offsets;
  std::byte* packed;
};

/// The kernels for one type and operation. Lanes have the type in which sums are computed.
struct ListKernels {
  /// Returns the words of a list that comes behind lists of `before` elements together. They are written to
  /// `words`, or are the list's own values. Lanes longer than a word are written to `lanes`, behind those of
  /// the lists before.
  const std::byte* (*enter)(const ElementList& list, std::size_t before, std::byte* lanes,
                            std::uint32_t* words) noexcept;
  /// Merges two lists, and returns how many entries there are then. Those of the same offset are combined if
  /// there is a merge_to(), and otherwise stay one behind the other, that of `a` first. There is room for
  /// kSpareEntries behind the merged list, which overlaps neither.
  std::size_t (*merge)(const ListEntries& a, const ListEntries& b, std::uint32_t* offsets,
                       std::uint32_t* words) noexcept;
  /// Merges the last two lists, which have no entry twice, to the union. Returns how many entries it has, for
  /// which there is room. nullptr where vectors are too short for that.
  std::size_t (*merge_to)(const ListEntries& a, const ListEntries& b, const ListUnion& to) noexcept;
  /// Combines the entries of a merged list that have the same offset, in their order. An element that fewer
  /// than all ranks have is combined with a zero.
  void (*combine)(const ListEntries& merged, const std::byte* lanes, const ListUnion& to) noexcept;
};

/// The kernels for the best instruction set of this CPU. Null only for values outside the enums.
const ListKernels* list_kernels(DataType type, ReduceOp op) noexcept;

/// Merges the ranks' lists, and combines what ranks have of the same element, in ascending order of ranks.
/// The result has the same bits as if reduce_kernel() had summed the dense slices. Its time depends on the
/// elements that the ranks hold and not on the size of the slice. What was merged so far is merged again with
/// the list of each further rank, so it is good for few ranks only. One thread at a time may use it. Only the
/// constructor allocates; it throws std::bad_alloc.
///
/// A step of the merge compares two offsets and moves a word for all types, and has no branch. Equal offsets
/// end up in the order of the ranks.
class ListSum {
 public:
  ListSum();

  /// Begins a sum. `ranks` is the number of the communicator's ranks. The lists' offsets are counted from
  /// `base`, which is taken from those of the union.
  void start(DataType type, ReduceOp op, int ranks, std::uint32_t base = 0);
  /// Merges the list of the next rank, in ascending order of ranks. Those that hold nothing need not be
  /// mentioned. There are at most kMostLists lists, and all together have at most kMostListed elements. The
  /// list stays as it is until emit().
  void add(const ElementList& list);
  /// Returns the number of elements in the union of the lists.
  std::size_t unite();
  /// The same for a caller that can do with a bound: so the last merge is left to emit(), which then writes
  /// to where the result belongs.
  std::size_t unite_later();
  /// Writes the offsets of the union, and the results, packed, after either. Both have room for as many as
  /// that returned. Returns the number of elements in the union.
  std::size_t emit(std::byte* packed, std::uint32_t* offsets);

 private:
  static constexpr std::size_t kMostLaneBytes = sizeof(std::uint64_t);
  /// Vectors write beyond the end of a merged list.
  static constexpr std::size_t kSpareEntries = 32;
  struct Merged {
    Merged();
    std::unique_ptr<std::uint32_t[]> offsets, words;
  };

  void merge_last();

  std::unique_ptr<std::uint32_t[]> first_, further_;  // words of lists that are not merged yet
  Merged merged_, spare_;                             // all lists so far, and where the next merge goes
  std::unique_ptr<std::byte[]> lanes_;
  const ListKernels* kernels_ = nullptr;
  ListEntries entries_, last_;  // of all lists but the last one, and of that, if it is not merged yet
  std::size_t lists_ = 0, united_ = 0;
  int ranks_ = 0;
  std::uint32_t base_ = 0;
};

}  // namespace nzcl
