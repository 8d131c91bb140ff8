#include "runtime/torch/conversion.h"

#include <torch/version.h>

#include "runtime/torch/types.h"

namespace nzcl_torch {
namespace {

using Op = c10d::ReduceOp;

/// Bools are 0 and 1, and their sum is true if one of them is.
Reduction reduction_of_bools(Op::RedOpType op) {
  Reduction how{.type = at::kByte};
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR:
      how.op = nzcl::ReduceOp::max;
      return how;
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND:
      how.op = nzcl::ReduceOp::min;
      return how;
    case Op::BXOR:
      how.odd = true;
      return how;
    case Op::AVG:
    case Op::PREMUL_SUM:
    case Op::UNUSED:
      break;
  }
  TORCH_CHECK(false,
              "nzcl reduces bools with SUM, PRODUCT, MIN, MAX, BAND, BOR and BXOR; they have no average");
}

at::ScalarType type_in_place_of(at::ScalarType type) {
  return type == at::kChar || type == at::kShort ? at::kInt : type;
}

/// The same entries with other values. Equal indices mean a sum in the tensor's own type, so they are summed
/// before. What comes back may have other entries.
StandIn sparse_stand_in(const at::Tensor& tensor, const Reduction& how) {
  const at::ScalarType type = how.type;
  if (tensor.layout() == at::kSparse && tensor.scalar_type() == type) return {.tensor = tensor, .back = {}};
  const at::Tensor coo = tensor.layout() == at::kSparse ? tensor.coalesce() : tensor.to_sparse();
  at::Tensor other = coo.scalar_type() == type ? coo.clone() : coo.to(type);
  return {.tensor = other, .back = [tensor, other, odd = how.odd]() mutable {
            if (odd) other._values().bitwise_and_(1);
            const at::Tensor result = other.to(tensor.scalar_type());
            if (tensor.layout() == at::kSparse) {
              tensor.copy_(result);
            } else {
              const at::Tensor rows = result.to_sparse_csr();
              at::resize_as_sparse_(tensor, rows).copy_(rows);
            }
          }};
}

/// A dense copy, whose result is copied back.
StandIn copied(const at::Tensor& tensor, const at::Tensor& copy) {
  const at::Tensor other = copy.contiguous();
  return {.tensor = other, .back = [tensor, other]() mutable { tensor.copy_(other); }};
}

at::Tensor multiplied(const at::Tensor& tensor, const Op& op) {
  const auto* const factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(factor != nullptr, "nzcl does not know this operation's supplement");
#if TORCH_VERSION_MAJOR >= 2
  return factor->tensor_factor.defined() ? tensor * factor->tensor_factor : tensor * factor->double_factor;
#else
  return factor->tensor_factors.empty() ? tensor * factor->double_factor
                                        : tensor * factor->tensor_factors.front();
#endif
}

}  // namespace

Reduction reduction_of(at::ScalarType type, const c10d::ReduceOp& op, bool gloo) {
  if (type == at::kBool) return reduction_of_bools(op);
  Reduction how{.type = type_in_place_of(type)};
  switch (static_cast<Op::RedOpType>(op)) {
    case Op::SUM:
    case Op::AVG:
    case Op::MIN:
    case Op::MAX:
      how.op = op_of(op);
      type_of(how.type);
      return how;
    case Op::PREMUL_SUM:
      how.premultiplied = op;
      type_of(how.type);
      TORCH_CHECK(at::isFloatingType(type) && op.supplement_,
                  "nzcl's PREMUL_SUM takes a factor, and tensors of floating-point numbers");
      return how;
    case Op::PRODUCT:
    case Op::BAND:
    case Op::BOR:
    case Op::BXOR:
      if (!gloo) op_of(op);  // refuses
      how.gloo = op;
      return how;
    case Op::UNUSED:
      break;
  }
  op_of(op);  // refuses
  return how;
}

StandIn stand_in(const at::Tensor& tensor, const Reduction& how) {
  TORCH_CHECK(tensor.layout() == at::kStrided || !how.premultiplied.supplement_,
              "nzcl's PREMUL_SUM takes dense tensors");
  if (tensor.layout() != at::kStrided) return sparse_stand_in(tensor, how);
  if (how.premultiplied.supplement_)
    return copied(tensor, multiplied(tensor, how.premultiplied).to(tensor.scalar_type()));
  if (tensor.scalar_type() == how.type) return {.tensor = tensor, .back = {}};
  if (tensor.scalar_type() != at::kBool) return copied(tensor, tensor.to(how.type));
  at::Tensor bytes = tensor.view(at::kByte);  // the same memory
  if (!how.odd) return {.tensor = bytes, .back = {}};
  return {.tensor = bytes, .back = [bytes]() mutable { bytes.bitwise_and_(1); }};
}

}  // namespace nzcl_torch
