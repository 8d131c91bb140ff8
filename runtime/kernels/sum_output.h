// Where the sum of a slice of single elements goes.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/kernels/elements.h"

namespace nzcl {

/// Both outputs may be wanted at once. They do not overlap what is read.
struct SumOutput {
  /// Of the communicator, at least 2. It is the divisor of avg.
  int ranks = 2;
  /// The elements of the union, one behind the other; no data: not wanted. It has room for all of them, and
  /// what lies behind the last one is arbitrary.
  std::span<std::byte> packed = {};
  /// All elements of the slice, those that are not in the union as zeros; null: not wanted.
  std::byte* dense = nullptr;
  /// As in expand().
  StoreTo where = StoreTo::cache;
};

}  // namespace nzcl
