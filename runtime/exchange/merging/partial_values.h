// Values on their way from contributions to partial sums, and from these to results.
#pragma once

#include <cstddef>

#include "nzcl/types.h"

namespace nzcl::engine {

/// Converts `count` values of the tensor's type to the type of its partial sums, which is another one.
void widen_values(DataType type, DataType partial, const std::byte* values, std::size_t count,
                  std::byte* to) noexcept;

/// Makes results of partial sums: divides them if the operation is an average, and converts them to the
/// tensor's type. The sums are used up. `to` is where they lie, or does not overlap them; it must be another
/// place if partial sums have another type.
void finish_values(DataType type, ReduceOp op, int ranks, std::byte* sums, std::size_t count,
                   std::byte* to) noexcept;

}  // namespace nzcl::engine
