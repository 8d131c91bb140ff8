// Sums a slice of single elements over all ranks in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nzcl/types.h"

namespace nzcl {

/// One rank's contribution to a slice.
struct MergeSource {
  const std::uint64_t* bitmap = nullptr;  // words_for(elements) words; null: the rank holds all elements
  const std::byte* values = nullptr;      // packed, whole elements
  std::size_t count = 0;                  // of them, as many as the bitmap has bits set
};

/// Sums the contributions, and returns how many elements are in the union. The result has the same bits as if
/// reduce_kernel() had summed the dense slices. `sources` are those of the ranks that hold anything, in
/// ascending order of ranks; the call moves them on while it reads, so they cannot be used again. `any`
/// becomes the bitmap of the union; it has words_for(elements) words, and may be the bitmap of one of the
/// sources. `ranks` is the number of the communicator's, at least 2, and the divisor of avg. `packed` takes
/// the elements of the union, one behind the other; it has room for all of them, does not overlap what is
/// read, and its content behind the last one is arbitrary.
using MergeFn = std::size_t (*)(std::span<MergeSource> sources, std::size_t elements, std::uint64_t* any,
                                int ranks, std::span<std::byte> packed) noexcept;

/// The kernel for the best instruction set of this CPU. Null only for values outside the enums.
MergeFn merge_kernel(DataType type, ReduceOp op) noexcept;

}  // namespace nzcl
