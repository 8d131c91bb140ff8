// Element-by-element reduction of several buffers in one pass.
#pragma once

#include <cstddef>

#include "nzcl/types.h"

namespace nzcl {

struct ReduceSpec {
  /// avg divides by this: all ranks of the communicator, also those that skipped the block; >= source_count.
  int ranks;
  /// A rank skipped the block: min and max see one more source of +0, the last one.
  bool with_zero;
};

/// dst[i] = ((s0[i] op s1[i]) op s2[i]) ..., strictly in the order of the sources, with the same bits on
/// every instruction set as a plain scalar loop has:
/// - float16 and bfloat16 are computed in float32 and rounded once, to nearest even.
/// - avg: floating point is divided once, in the type of the accumulation; integers divide towards zero.
///   The sums wrap, except that of uint8's avg, which is taken in int32: else it would be no average.
/// - min and max: of equals, such as -0.0 and +0.0, the earlier source stays; a NaN in any source gives NaN.
/// - A floating-point result that is NaN is always the positive quiet NaN without payload.
/// - One source and nothing to compute (no avg, no zero in min and max): a copy, NaNs included.
///
/// source_count >= 1. dst may be one of the sources, but must not overlap one otherwise. Pointers are aligned
/// to the element, no more.
using ReduceFn = void (*)(std::byte* dst, const std::byte* const* sources, std::size_t source_count,
                          std::size_t elements, const ReduceSpec& spec) noexcept;

/// The kernel for the best instruction set of this CPU. Null only for values outside the enums.
ReduceFn reduce_kernel(DataType type, ReduceOp op) noexcept;

}  // namespace nzcl
