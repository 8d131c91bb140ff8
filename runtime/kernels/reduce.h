// Element-by-element reduction of several buffers in one pass.
#pragma once

#include <cstddef>

#include "nzcl/types.h"

namespace nzcl {

struct ReduceSpec {
  /// The divisor of avg: the number of ranks of the communicator, including those that skipped the block. It
  /// is at least source_count.
  int ranks;
  /// At least one rank skipped the block, so one source of +0 is added. It changes minima and maxima, and
  /// turns sums of nothing but -0.0 into +0.0.
  bool with_zero;
};

/// dst[i] = ((s0[i] op s1[i]) op s2[i]) ..., strictly in the order of the sources. Every instruction set
/// gives the same bits as a plain scalar loop:
/// - float16 and bfloat16 are computed in float32 and rounded once, to nearest even.
/// - avg divides floating-point sums once, in the type of the accumulator, and integers towards zero. Integer
///   sums wrap, except for the avg of uint8, which is summed in int32, because a wrapped sum has no average.
/// - min and max are the minimum and maximum of IEEE 754-2019: -0.0 is less than +0.0, and a NaN in any
///   source gives NaN.
/// - A floating-point result that is NaN is always the positive quiet NaN without payload.
/// - One source with nothing to compute (no avg, no zero that matters) is copied, NaNs included.
///
/// source_count >= 1. dst may be one of the sources, but must not overlap one partially. Pointers need only
/// the alignment of the element.
using ReduceFn = void (*)(std::byte* dst, const std::byte* const* sources, std::size_t source_count,
                          std::size_t elements, const ReduceSpec& spec) noexcept;

/// The kernel for the best instruction set of this CPU. Null only for values outside the enums.
ReduceFn reduce_kernel(DataType type, ReduceOp op) noexcept;

}  // namespace nzcl
