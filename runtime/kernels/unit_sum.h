// Sums a slice of units over all ranks in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nzcl/types.h"
#include "runtime/kernels/merge.h"

namespace nzcl {

/// The most sources of one sum.
inline constexpr std::size_t kMostUnitSources = 16;

/// What is summed: a slice of `elements` elements in units of `unit_elements`, of which those in `any` are in
/// the union of the sources' index sets. `ranks` is the number of the communicator's ranks.
struct UnitSlice {
  std::size_t elements = 0;
  std::size_t unit_elements = 1;
  std::span<const std::uint64_t> any;
  int ranks = 2;
};

/// Whether merge_kernel(), with index sets that are spread to those of elements, takes less time than the sum
/// of units. `held_units` are those of all sources together. The time of the one follows the elements and the
/// sources, that of the other the units that are there. Also true for units of one element, for which there
/// is no sum of units.
constexpr bool sums_faster_by_element(std::size_t elements, std::size_t unit_elements, std::size_t held_units,
                                      std::size_t sources) {
  constexpr std::size_t kElementsOfUnit = 40;  // a unit takes as long as this many elements of a source
  return unit_elements == 1 || held_units * kElementsOfUnit > elements * sources;
}

/// Sums the contributions, and writes the units of the union to `packed`, which has exactly their bytes. The
/// result has the same bits as if reduce_kernel() had summed the dense slices. `sources` are those of the
/// ranks that hold anything, in ascending order of ranks; their bitmaps are of units, and their counts are of
/// elements. They cannot be used again.
using UnitSumFn = void (*)(std::span<MergeSource> sources, const UnitSlice& slice,
                           std::span<std::byte> packed) noexcept;

/// The kernel for the best instruction set of this CPU. Null only for values outside the enums.
UnitSumFn unit_sum_kernel(DataType type, ReduceOp op) noexcept;

}  // namespace nzcl
