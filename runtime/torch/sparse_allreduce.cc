#include "runtime/torch/sparse_allreduce.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "runtime/torch/device.h"
#include "runtime/torch/types.h"

namespace nzcl_torch {
namespace {

/// In PyTorch equal indices mean a sum, whatever the operation between ranks.
bool adds(nzcl::ReduceOp op) { return op == nzcl::ReduceOp::sum || op == nzcl::ReduceOp::avg; }

}  // namespace

SparseAllreduce::SparseAllreduce(nzcl::Communicator& communicator, CallOrder& order, Buffers& buffers)
    : communicator_(communicator),
      order_(order),
      buffers_(buffers),
      headers_(static_cast<std::size_t>(communicator.size()) + 1),
      registered_headers_(
          communicator.register_buffer(headers_.data(), headers_.size() * sizeof(SparseHeader))) {}

void SparseAllreduce::add_to(const GroupWorkPtr& work, const at::Tensor& tensor, nzcl::ReduceOp op,
                             std::chrono::nanoseconds timeout) {
  const Call call{.work = work,
                  .tensor = tensor,
                  .input = adds(op) ? tensor : tensor.coalesce(),  // of a GPU, it may wait for the stream
                  .op = op,
                  .timeout = timeout};
  nzcl::Work gathering = gather_headers(call);
  order_.hold();
  try {
    const auto streams =
        current_streams(gpus_of({{call.input}}));  // the group's, as long as the call is made
    gathering.on_complete([=, this, going_on = work->wait_also()](const nzcl::Error* error) {
      if (error != nullptr) call.work->fail(error->what());
      order_.release([&] {
        if (error == nullptr) call.work->add_or_fail(streams, [&] { add_sum(call); });
      });
    });
  } catch (const nzcl::Error& e) {  // this rank cannot go on, and the others will
    communicator_.abort(e.what());
    order_.release([] {});
    throw;
  }
}

nzcl::Work SparseAllreduce::gather_headers(const Call& call) {
  headers_[0] = header_of(call.input, static_cast<int>(call.op));
  return communicator_.allgather({.input = &headers_[0],
                                  .output = &headers_[1],
                                  .count = kHeaderWords,
                                  .type = nzcl::DataType::int64,
                                  .block_elems = kHeaderWords,
                                  .timeout = call.timeout});
}

void SparseAllreduce::add_sum(const Call& call) {
  const at::Tensor& input = call.input;
  const auto plan = plan_of(input, std::span(headers_).subspan(1));
  if (!plan) {  // nobody has elements, and so many are coalesced
    if (call.tensor._nnz() == 0) call.tensor._coalesced_(true);
    return;
  }
  const auto used = [&](const at::Tensor& t) { return call.work->use(t, buffers_); };
  const double density = static_cast<double>(plan->most_entries) / static_cast<double>(plan->blocks);
  const at::Tensor values = used(values_of(input));
  const at::Tensor result = used(empty_values(input, *plan, plan->room));
  nzcl::SparseAllreduceRequest request{
      .values = input._nnz() == 0 ? nullptr : values.data_ptr(),
      .count = static_cast<std::uint64_t>(plan->blocks) * static_cast<std::uint64_t>(plan->block_elems),
      .type = type_of(values),
      .op = call.op,
      .block_elems = static_cast<std::uint64_t>(plan->block_elems),
      .packed_values = result.data_ptr(),
      .packed_capacity = static_cast<std::uint64_t>(plan->room),
      .sum_duplicates = adds(call.op),
      .timeout = call.timeout,
      .expected_density = std::min(density, 1.0),
      .stream = stream_handle(values)};
  if (is_gpu(input.device())) {
    const at::Tensor indices = used(gpu_indices_of(input));
    const at::Tensor found = used(at::empty({plan->room}, indices.options()));
    request.indices = {indices.data_ptr(), static_cast<std::size_t>(indices.numel()), nzcl::IndexType::int64};
    request.packed_indices = found.data_ptr<std::int64_t>();
    nzcl::Work sum = communicator_.allreduce_sparse(request);
    call.work->at_end([tensor = call.tensor, plan = *plan, sum, found, result] {
      const auto blocks = static_cast<std::int64_t>(sum.statistics().union_blocks);
      replace_on_gpu(tensor, plan, blocks, found, result);
    });
    return call.work->add(std::move(sum));
  }
  const std::vector<std::int64_t> indices = indices_of(input);
  request.indices = std::span<const std::int64_t>(indices);
  nzcl::Work sum = communicator_.allreduce_sparse(request);
  call.work->at_end([tensor = call.tensor, plan = *plan, sum, result] {
    replace(tensor, plan, sum.packed_indices(), result);
  });
  call.work->add(std::move(sum));
}

}  // namespace nzcl_torch
