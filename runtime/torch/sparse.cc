#include "runtime/torch/sparse.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <limits>

namespace nzcl_torch {
namespace {

std::int64_t product(at::IntArrayRef sizes) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  std::int64_t all = 1;
  for (const std::int64_t size : sizes)
    TORCH_CHECK(!__builtin_mul_overflow(all, size, &all), "nzcl: a sparse tensor of the shape ", sizes,
                " has more elements than 63 bits can count");
  return all;
}

/// Why ranks do not agree, naming the first two that differ.
template <typename Value>
void check_same(std::span<const SparseHeader> ranks, bool with_entries, Value value, const char* text) {
  std::optional<std::size_t> first;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (with_entries && ranks[r].entries == 0) continue;
    if (!first) first = r;
    TORCH_CHECK(value(ranks[r]) == value(ranks[*first]), "nzcl: ranks disagree about a sparse tensor: ", text,
                " of rank ", *first, " and rank ", r, " differ");
  }
}

void set_entries(at::Tensor tensor, const at::Tensor& coordinates, const at::Tensor& values) {
  at::Tensor result = at::_sparse_coo_tensor_unsafe(coordinates, values, tensor.sizes(), tensor.options());
  result._coalesced_(true);
  tensor.copy_(result);
}

}  // namespace

SparseHeader header_of(const at::Tensor& tensor, int op) {
  product(tensor.sizes());
  return {.entries = tensor._nnz(),
          .sparse_dims = tensor.sparse_dim(),
          .fingerprint = static_cast<std::int64_t>(
              c10::get_hash(tensor.sizes().vec(), static_cast<int>(tensor.scalar_type()), op))};
}

std::optional<SparsePlan> plan_of(const at::Tensor& tensor, std::span<const SparseHeader> ranks) {
  check_same(
      ranks, false, [](const SparseHeader& h) { return h.fingerprint; }, "shape, type or operation");
  check_same(
      ranks, true, [](const SparseHeader& h) { return h.sparse_dims; }, "the numbers of sparse dimensions");
  SparsePlan plan;
  std::int64_t all = 0;
  for (const SparseHeader& h : ranks) {
    if (h.entries == 0) continue;
    plan.sparse_dims = h.sparse_dims;
    plan.most_entries = std::max(plan.most_entries, h.entries);
    if (__builtin_add_overflow(all, h.entries, &all)) all = std::numeric_limits<std::int64_t>::max();
  }
  if (all == 0) return std::nullopt;
  const auto split = static_cast<std::size_t>(plan.sparse_dims);
  plan.blocks = product(tensor.sizes().slice(0, split));
  plan.block_elems = product(tensor.sizes().slice(split));
  plan.room = std::min(plan.blocks, all);
  if (plan.blocks == 0 || plan.block_elems == 0) return std::nullopt;  // entries of a tensor without elements
  return plan;
}

std::vector<std::int64_t> indices_of(const at::Tensor& tensor) {
  const at::Tensor indices = tensor._indices().contiguous();
  const auto n = static_cast<std::size_t>(tensor._nnz());
  std::vector<std::int64_t> blocks(n, 0);
  if (n == 0) return blocks;
  for (std::int64_t d = 0; d < tensor.sparse_dim(); ++d) {
    const std::int64_t* const row = indices.data_ptr<std::int64_t>() + d * indices.size(1);
    const std::int64_t size = tensor.size(d);
    for (std::size_t i = 0; i < n; ++i) blocks[i] = blocks[i] * size + row[i];
  }
  return blocks;
}

/// Row by row: what has come of the dimensions before counts as often as this one is long.
at::Tensor gpu_indices_of(const at::Tensor& tensor) {
  const at::Tensor indices = tensor._indices();
  if (tensor.sparse_dim() == 0) return at::zeros({tensor._nnz()}, indices.options());
  at::Tensor blocks = indices.select(0, 0);
  for (std::int64_t d = 1; d < tensor.sparse_dim(); ++d)
    blocks = at::add(indices.select(0, d), blocks, tensor.size(d));
  return blocks.contiguous();
}

at::Tensor values_of(const at::Tensor& tensor) { return tensor._values().contiguous(); }

at::Tensor empty_values(const at::Tensor& tensor, const SparsePlan& plan, std::int64_t blocks) {
  std::vector<std::int64_t> sizes{blocks};
  const auto inside = tensor.sizes().slice(static_cast<std::size_t>(plan.sparse_dims));
  sizes.insert(sizes.end(), inside.begin(), inside.end());
  return at::empty(sizes, tensor._values().options());
}

void replace(const at::Tensor& tensor, const SparsePlan& plan, std::span<const std::int64_t> indices,
             const at::Tensor& values) {
  const auto n = static_cast<std::int64_t>(indices.size());
  at::Tensor coordinates = at::empty({plan.sparse_dims, n}, at::kLong);
  std::vector<std::int64_t> rest(indices.begin(), indices.end());
  for (std::int64_t d = plan.sparse_dims; d-- > 0;) {
    std::int64_t* const row = coordinates.data_ptr<std::int64_t>() + d * n;
    const std::int64_t size = tensor.size(d);
    for (std::size_t i = 0; i < rest.size(); ++i) row[i] = rest[i] % size, rest[i] /= size;
  }
  set_entries(tensor, coordinates, values.narrow(0, 0, n));
}

void replace_on_gpu(const at::Tensor& tensor, const SparsePlan& plan, std::int64_t blocks,
                    const at::Tensor& indices, const at::Tensor& values) {
  at::Tensor coordinates = at::empty({0, blocks}, indices.options());
  if (plan.sparse_dims > 0) {
    std::vector<at::Tensor> rows(static_cast<std::size_t>(plan.sparse_dims));
    at::Tensor rest = indices.narrow(0, 0, blocks);
    for (std::size_t d = rows.size(); --d > 0;) {
      const std::int64_t size = tensor.size(static_cast<std::int64_t>(d));
      const at::Tensor before = at::div(rest, size, "trunc");
      rows[d] = at::sub(rest, before, size);
      rest = before;
    }
    rows[0] = rest;
    coordinates = rows.size() == 1 ? rest.unsqueeze(0) : at::stack(rows);
  }
  set_entries(tensor, coordinates, values.narrow(0, 0, blocks));
}

}  // namespace nzcl_torch
