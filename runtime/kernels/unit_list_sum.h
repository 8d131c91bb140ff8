// The sum, minimum or maximum over ranks of several slices of units in a row, for few ranks that hold few
// units each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nzcl/types.h"
#include "runtime/kernels/list_sum.h"
#include "runtime/kernels/reduce.h"

namespace nzcl {

/// Does for units of several elements what ListSum does for single elements: merges the ranks' lists, of
/// which each offset is that of a unit, and combines what ranks have of the same one in ascending order of
/// ranks. The result has the same bits as if reduce_kernel() had summed the dense slices. Units in a row that
/// the same ranks hold are combined at once, where they lie. One thread at a time may use it. Only the
/// constructor allocates; it throws std::bad_alloc.
class UnitListSum {
 public:
  UnitListSum();

  /// Begins a sum of units of so many elements. `ranks` is the number of the communicator's ranks.
  void start(DataType type, ReduceOp op, int ranks, std::size_t unit_elements);
  /// Adds the list of the next rank, in ascending order of ranks. Those that hold nothing need not be
  /// mentioned. There are at most kMostLists lists, and all together have at most kMostListed units. The
  /// list stays as it is until emit().
  void add(const ElementList& list) { lists_.push_back(list); }
  /// Merges the lists, and returns the number of units in their union.
  std::size_t unite();
  /// Writes the offsets of the union, and the results, packed. Both have room for them. Returns the number of
  /// units in the union.
  std::size_t emit(std::byte* packed, std::uint32_t* offsets) const;

 private:
  /// Units of the union in a row that the same lists have, which are bits of `holders`.
  struct Run {
    std::uint32_t holders = 0, units = 0;
  };

  ReduceFn reduce_ = nullptr;
  int ranks_ = 0;
  std::size_t unit_elements_ = 1, unit_bytes_ = 0;
  std::vector<ElementList> lists_;
  std::vector<std::uint32_t> offsets_;
  std::vector<Run> runs_;
};

}  // namespace nzcl
