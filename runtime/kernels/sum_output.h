// Where the sum of a slice of single elements goes.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/kernels/elements.h"

namespace nzcl {

/// Both outputs may be wanted at once. They do not overlap what is read.
struct SumOutput {
  /// The number of ranks of the communicator, at least 2. It is the divisor of avg.
  int ranks = 2;
  /// Takes the elements of the union, one behind the other; an empty span if that is not wanted. It has room
  /// for all of them, and its content behind the last one is arbitrary.
  std::span<std::byte> packed = {};
  /// Takes all elements of the slice, those outside the union as zeros; null if that is not wanted.
  std::byte* dense = nullptr;
  /// How the dense output is stored, as in expand().
  StoreTo where = StoreTo::cache;
};

}  // namespace nzcl
