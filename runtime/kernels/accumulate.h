// Adds single elements to a slice's accumulator. ElementAccumulator (element_accumulator.h) is the safe way
// to use these kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nzcl/types.h"

namespace nzcl {

/// The kernels for one type and operation. An accumulator is an array of lanes, one for each element of the
/// slice, and some more to make whole words of 64. A lane has the type in which sums are computed: float32
/// for the 16-bit types, int32 for uint8, and else the type of the elements. `lanes` is aligned to 64 bytes.
struct AccumulateKernels {
  std::size_t lane_bytes;

  /// Sets `words` * 64 lanes to the operation's identity.
  void (*clear)(std::byte* lanes, std::size_t words) noexcept;
  /// Adds values to all lanes from the first on.
  void (*add_all)(std::byte* lanes, const std::byte* values, std::size_t elements) noexcept;
  /// Adds packed values to the lanes in the bitmap, which has as many bits set as `values` has elements.
  void (*add_bitmap)(std::byte* lanes, std::span<const std::uint64_t> bitmap,
                     std::span<const std::byte> values) noexcept;
  /// Adds one packed value for each offset to its lane.
  void (*add_offsets)(std::byte* lanes, std::span<const std::uint16_t> offsets,
                      const std::byte* values) noexcept;
  /// Writes the results for the elements in `any` one behind the other, and sets their lanes to the identity.
  /// The elements that are not in `all` are first combined with a zero. `ranks` is the divisor of avg.
  /// `packed` has room for the whole union.
  void (*emit)(std::byte* lanes, std::span<const std::uint64_t> any, const std::uint64_t* all, int ranks,
               std::span<std::byte> packed) noexcept;
  /// The same for a union that is given as a list.
  void (*emit_offsets)(std::byte* lanes, std::span<const std::uint16_t> offsets, const std::uint64_t* all,
                       int ranks, std::span<std::byte> packed) noexcept;
};

/// The kernels for the best instruction set of this CPU. Null only for values outside the enums.
const AccumulateKernels* accumulate_kernels(DataType type, ReduceOp op) noexcept;

}  // namespace nzcl
