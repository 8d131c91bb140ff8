// What calls of a process group refuse in their arguments, by the name of the call.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nzcl_torch {

/// The tensor of a list that has one.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call);
/// Refuses options that name a rank or a tensor which does not exist.
void check_root(const char* call, std::int64_t rank, int size, std::int64_t tensor, std::size_t tensors);
/// Whether the tensor has memory in common with one of the others.
bool overlaps(const at::Tensor& t, const std::vector<at::Tensor>& others);
/// Refuses a tensor of a list that has not the type of `like`, or is on another device.
void check_type(const at::Tensor& t, const char* call, const char* what, std::size_t number,
                const at::Tensor& like, const char* like_what);
/// Refuses a tensor of a list that has not the type, device and number of elements of `like`.
void check_like(const at::Tensor& t, const char* call, const char* what, std::size_t number,
                const at::Tensor& like, const char* like_what);

}  // namespace nzcl_torch
