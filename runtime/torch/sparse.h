// Sparse COO tensors as blocks that are given by value and index.
#pragma once

#include <ATen/ATen.h>

#include <numeric>
#include <span>
#include <vector>

#include "runtime/torch/types.h"

namespace nzcl_torch {

/// What a sparse tensor is in nzcl's terms. The tensor is `blocks` blocks of `block_elems` elements: the
/// sparse dimensions count the blocks, the dense ones are inside of a block. An index may be there several
/// times.
struct SparseBlocks {
  at::Tensor values;  // [number of entries, dense dimensions...], contiguous
  std::vector<std::int64_t> indices;
  std::int64_t blocks = 1, block_elems = 1;
};

inline std::int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

inline SparseBlocks blocks_of(const at::Tensor& t) {
  SparseBlocks b;
  const auto sparse = t.sizes().slice(0, static_cast<std::size_t>(t.sparse_dim()));
  b.blocks = product(sparse);
  b.block_elems = product(t.sizes().slice(static_cast<std::size_t>(t.sparse_dim())));
  b.values = t._values().contiguous();
  const at::Tensor indices = t._indices().contiguous();
  const auto n = static_cast<std::size_t>(t._nnz());
  b.indices.assign(n, 0);
  for (std::int64_t d = 0; d < t.sparse_dim(); ++d) {
    const std::int64_t* row = indices.data_ptr<std::int64_t>() + d * indices.size(1);
    for (std::size_t i = 0; i < n; ++i)
      b.indices[i] = b.indices[i] * sparse[static_cast<std::size_t>(d)] + row[i];
  }
  return b;
}

/// Makes `tensor` the sparse tensor with these entries, of which the indices ascend. `values` may have room
/// for more.
inline void replace(at::Tensor tensor, std::span<const std::int64_t> indices, const at::Tensor& values) {
  const auto n = static_cast<std::int64_t>(indices.size());
  at::Tensor coordinates = at::empty({tensor.sparse_dim(), n}, at::kLong);
  std::vector<std::int64_t> rest(indices.begin(), indices.end());
  for (std::int64_t d = tensor.sparse_dim(); d-- > 0;) {
    std::int64_t* row = coordinates.data_ptr<std::int64_t>() + d * n;
    const std::int64_t size = tensor.size(d);
    for (std::size_t i = 0; i < rest.size(); ++i) row[i] = rest[i] % size, rest[i] /= size;
  }
  at::Tensor result =
      at::_sparse_coo_tensor_unsafe(coordinates, values.narrow(0, 0, n), tensor.sizes(), tensor.options());
  result._coalesced_(true);
  tensor.copy_(result);
}

}  // namespace nzcl_torch
