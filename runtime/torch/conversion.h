// Types and operations that nzcl has no kernel for, as others that it has.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>
#include <optional>

#include "nzcl/types.h"

namespace nzcl_torch {

/// How tensors of one type are reduced by one of c10d's operations.
struct Reduction {
  /// The type in which it is done. Bool is done in uint8, where 0 and 1 stay what they are. Int8 and int16
  /// are done in int32: sums wrap around there as they do in the narrower type, of which only the last bits
  /// are kept.
  at::ScalarType type;
  nzcl::ReduceOp op = nzcl::ReduceOp::sum;             ///< if nzcl does it
  std::optional<c10d::ReduceOp::RedOpType> gloo = {};  ///< set if Gloo does it: its operation
  bool odd = false;                                    ///< the result is the last bit of the sum
  c10d::ReduceOp premultiplied = {};                   ///< PREMUL_SUM: has the factor
};

/// Throws c10::Error for what neither can do, and, if `gloo` is false, for what only Gloo can do.
Reduction reduction_of(at::ScalarType type, const c10d::ReduceOp& op, bool gloo);

/// What is reduced in place of a tensor, and how its result comes back.
struct StandIn {
  at::Tensor tensor;           ///< the tensor itself, if it needs no other
  std::function<void()> back;  ///< to be called when `tensor` has the result; or none
};
/// `tensor` may be sparse, in COO or CSR form.
StandIn stand_in(const at::Tensor& tensor, const Reduction& how);

}  // namespace nzcl_torch
