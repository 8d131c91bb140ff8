#include "runtime/torch/arguments.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>

#include "runtime/torch/types.h"

namespace nzcl_torch {

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call) {
  TORCH_CHECK(!tensors.empty(), "nzcl's ", call, " requires non-empty tensor list");  // Gloo's words
  TORCH_CHECK(tensors.size() == 1, "nzcl's ", call, " requires a single-element tensor list; this one has ",
              tensors.size());
  return tensors.front();
}

void check_root(const char* call, std::int64_t rank, int size, std::int64_t tensor, std::size_t tensors) {
  TORCH_CHECK(rank >= 0 && rank < size, "nzcl's ", call, ": invalid root rank: ", rank, "; there are ", size);
  TORCH_CHECK(tensor >= 0 && static_cast<std::size_t>(tensor) < tensors, "nzcl's ", call,
              ": invalid root tensor: ", tensor);
}

bool overlaps(const at::Tensor& t, const std::vector<at::Tensor>& others) {
  return std::ranges::any_of(others, [&](const at::Tensor& other) {
    return !t.is_sparse() && !other.is_sparse() && t.is_alias_of(other) &&
           at::get_overlap_status(t, other) != at::MemOverlapStatus::No;
  });
}

void check_type(const at::Tensor& t, const char* call, const char* what, std::size_t number,
                const at::Tensor& like, const char* like_what) {
  TORCH_CHECK(t.scalar_type() == like.scalar_type(), "nzcl's ", call, ": ", what, " ", number, " is of type ",
              t.scalar_type(), ", but ", like_what, " of type ", like.scalar_type());
  TORCH_CHECK(t.device() == like.device(), "nzcl's ", call, ": ", what, " ", number, " is on ", t.device(),
              ", but ", like_what, " is on ", like.device());
}

void check_like(const at::Tensor& t, const char* call, const char* what, std::size_t number,
                const at::Tensor& like, const char* like_what) {
  check_dense(t, call);
  check_type(t, call, what, number, like, like_what);
  TORCH_CHECK(t.numel() == like.numel(), "nzcl's ", call, ": ", what, " ", number, " has ", t.numel(),
              " elements, but ", like_what, " has ", like.numel());
}

}  // namespace nzcl_torch
