// What libtorch's types, operations and shapes are in nzcl's terms.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <cstdint>

#include "nzcl/types.h"
#include "runtime/torch/device.h"

namespace nzcl_torch {

inline nzcl::DataType type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return nzcl::DataType::float32;
    case at::kDouble:
      return nzcl::DataType::float64;
    case at::kHalf:
      return nzcl::DataType::float16;
    case at::kBFloat16:
      return nzcl::DataType::bfloat16;
    case at::kInt:
      return nzcl::DataType::int32;
    case at::kLong:
      return nzcl::DataType::int64;
    case at::kByte:
      return nzcl::DataType::uint8;
    default:
      TORCH_CHECK(false, "nzcl does not reduce tensors of type ", type,
                  "; it reduces float, double, half, bfloat16, int, long, short, byte, int8 and bool");
  }
}

inline nzcl::DataType type_of(const at::Tensor& t) { return type_of(t.scalar_type()); }

inline nzcl::ReduceOp op_of(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return nzcl::ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return nzcl::ReduceOp::avg;
    case c10d::ReduceOp::MIN:
      return nzcl::ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return nzcl::ReduceOp::max;
    default:
      TORCH_CHECK(false, "nzcl reduces with SUM, AVG, MIN and MAX, and with no other operation");
  }
}

/// Elements per block of a dense tensor: 512 bytes, whatever its shape, because ranks may have tensors of as
/// many elements in other shapes. Smaller blocks would follow short rows more closely; where all blocks are
/// there, they take longer.
inline std::uint64_t block_of(const at::Tensor& t) {
  constexpr std::uint64_t kBlockBytes = 512;
  return std::max<std::uint64_t>(kBlockBytes / t.element_size(), 1);
}

inline void check_memory(const at::Tensor& t) {
  TORCH_CHECK(t.device().is_cpu() || is_gpu(t.device()),
              "nzcl reduces tensors in host memory and in that of CUDA's GPUs; this one is on ", t.device());
}
/// Refuses what is neither dense nor COO nor CSR.
inline void check_layout(const at::Tensor& t, const char* call) {
  check_memory(t);
  TORCH_CHECK(t.layout() == at::kStrided || t.layout() == at::kSparse || t.layout() == at::kSparseCsr,
              "nzcl's ", call, " takes dense tensors, and sparse ones in COO or CSR form; this one is ",
              t.layout(), ", which to_sparse_coo() or to_dense() turns into one of them");
}
inline void check_dense(const at::Tensor& t, const char* call) {
  check_memory(t);
  TORCH_CHECK(t.layout() == at::kStrided, "nzcl's ", call,
              " takes dense tensors; only allreduce takes sparse ones, and this one is ", t.layout());
}

/// For calls that only move a tensor: its memory as a type with as many bytes that Gloo of 1.13 knows. It
/// knows neither bool nor int16, bfloat16 or complex numbers.
inline at::Tensor as_moved(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kBool:
      return t.view(at::kByte);
    case at::kShort:
    case at::kBFloat16:
      return t.view(at::kHalf);
    case at::kComplexHalf:
      return t.view(at::kInt);
    case at::kComplexFloat:
      return t.view(at::kLong);
    case at::kComplexDouble:
      return at::view_as_real(t);
    default:
      return t;
  }
}

/// What Gloo is given for a tensor: elements that follow each other, in host memory. Gloo of a libtorch
/// without CUDA takes no other memory.
inline at::Tensor for_gloo(const at::Tensor& t) {
  return (t.layout() == at::kStrided ? t.contiguous() : t).cpu();
}

}  // namespace nzcl_torch
