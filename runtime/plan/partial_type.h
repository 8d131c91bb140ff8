// The types in which partial sums travel, and which reductions come out the same in any order.
#pragma once

#include "nzcl/types.h"

namespace nzcl::engine {

constexpr bool is_floating(DataType type) {
  return type == DataType::float32 || type == DataType::float64 || type == DataType::float16 ||
         type == DataType::bfloat16;
}

/// The type in which the sum of some ranks waits for that of the others: the one that kernels compute in
/// where the tensor's own would lose something. float16 and bfloat16 are rounded once, at the end, and the
/// average of uint8 is that of a sum that has not wrapped. A minimum or maximum loses nothing.
constexpr DataType partial_type(DataType type, ReduceOp op) {
  const bool sums = op == ReduceOp::sum || op == ReduceOp::avg;
  if (sums && (type == DataType::float16 || type == DataType::bfloat16)) return DataType::float32;
  if (op == ReduceOp::avg && type == DataType::uint8) return DataType::int32;
  return type;
}

/// What partial sums are combined with: an average is divided at the end.
constexpr ReduceOp partial_op(ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; }

/// Whether a result has the same bits whichever ranks' values are combined first. Sums of integers wrap, and
/// minima and maxima are exact. Sums of floats depend on the order, but up to three ranks merge in the order
/// of ranks.
constexpr bool same_in_any_order(DataType type, ReduceOp op, int ranks) {
  return !is_floating(type) || op == ReduceOp::min || op == ReduceOp::max || ranks <= 3;
}

}  // namespace nzcl::engine
