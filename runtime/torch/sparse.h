// Sparse COO tensors as blocks that are given by value and index.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nzcl_torch {

/// What the ranks tell each other of a sparse tensor before they sum it. The sparse dimensions count blocks,
/// the dense ones are inside of a block; only entries say which are which, because a tensor without entries
/// may have been emptied in place, and then all its dimensions are sparse.
struct SparseHeader {
  std::int64_t entries = 0;
  std::int64_t sparse_dims = 0;  ///< without entries it counts for nothing
  std::int64_t fingerprint = 0;  ///< of what has to be the same on all ranks: shape, type and operation
};
inline constexpr std::int64_t kHeaderWords = 3;

/// What the ranks agree on.
struct SparsePlan {
  std::int64_t sparse_dims = 0;
  std::int64_t blocks = 1, block_elems = 1;
  std::int64_t most_entries = 0;  ///< of one rank
  std::int64_t room = 0;          ///< the result has at most so many blocks
};

/// Throws c10::Error for a tensor of more elements than 63 bits count.
SparseHeader header_of(const at::Tensor& tensor, int op);

/// The plan for `tensor`, which is this rank's, from the headers of all ranks; none if no rank has elements.
/// Every rank comes to the same. Throws c10::Error, naming ranks, if their tensors do not fit each other.
std::optional<SparsePlan> plan_of(const at::Tensor& tensor, std::span<const SparseHeader> ranks);

/// The blocks' indices of the tensor's entries, of which the same may be there several times. The tensor is
/// in host memory.
std::vector<std::int64_t> indices_of(const at::Tensor& tensor);
/// The same for a tensor in memory of a GPU, computed there in the order of the current stream.
at::Tensor gpu_indices_of(const at::Tensor& tensor);
/// Its values, one behind the other, or none.
at::Tensor values_of(const at::Tensor& tensor);
/// Memory for the values of so many blocks.
at::Tensor empty_values(const at::Tensor& tensor, const SparsePlan& plan, std::int64_t blocks);

/// Makes `tensor`, which is in host memory, the sparse tensor with these entries, of which the indices
/// ascend. `values` may have room for more.
void replace(const at::Tensor& tensor, const SparsePlan& plan, std::span<const std::int64_t> indices,
             const at::Tensor& values);
/// The same for a tensor in memory of a GPU, which has the first `blocks` of `indices` and `values`. It is
/// done there, in the order of the current stream, and waits for nothing.
void replace_on_gpu(const at::Tensor& tensor, const SparsePlan& plan, std::int64_t blocks,
                    const at::Tensor& indices, const at::Tensor& values);

}  // namespace nzcl_torch
