#include "runtime/comm/communicator/packed_two_level_sum.h"

#include <algorithm>
#include <utility>

#include "nzcl/error.h"

namespace nzcl::comm {

PackedTwoLevelSum::PackedTwoLevelSum(Levels& levels, TwoLevelRequest request)
    : levels_(levels),
      request_(std::move(request)),
      of_host_(levels_.buffers().take()),
      of_column_(levels_.buffers().take()),
      failure_(request_.refusal) {}

void PackedTwoLevelSum::announce() {
  up_ = levels_.steps(Level::up).add();
  if (levels_.has_column()) across_ = levels_.steps(Level::across).add();
  down_ = levels_.steps(Level::down).add();
}

void PackedTwoLevelSum::begin() {
  levels_.steps(Level::up).ready(up_, [this, self = shared_from_this()] { sum_host(); });
}

/// The first step checks it.
void PackedTwoLevelSum::take_list(const HostList& list) {
  request_.input = list.values;
  request_.set_indices(list.indices, list.sum_duplicates);
}

SparseAllreduceRequest PackedTwoLevelSum::step_request(LevelBuffer* result) const {
  SparseAllreduceRequest request{.count = request_.record.count,
                                 .type = request_.type(),
                                 .op = request_.level_op(),
                                 .block_elems = request_.record.block_elems,
                                 .wire_type = WireType::as_is,
                                 .timeout = request_.level_timeout(),
                                 .tag = request_.record.tag};
  if (result == nullptr) {
    request.packed_values = request_.output.base;
    request.packed_capacity = request_.output.capacity;
    request.packed_indices = request_.output.indices;
    request.packed_grow = request_.output.grow;
    return request;
  }
  request.packed_values = result->values();
  request.packed_capacity = result->capacity();
  request.packed_indices = result->indices().data();
  request.packed_grow = [this, result](std::uint64_t blocks) {
    return result->make_room(blocks, request_.block_bytes());
  };
  return request;
}

std::uint64_t PackedTwoLevelSum::complete(Operation& step, LevelBuffer& buffer) {
  try {
    step.complete_packed();
    buffer.make_registered(levels_.buffers().register_memory());
  } catch (const std::exception& e) {
    failure_ = failure_of(e);
    return 0;
  }
  request_.count_traffic(step);
  return step.union_blocks.load(std::memory_order_relaxed);
}

/// The first step: the ranks of this host sum, and each has all of it.
void PackedTwoLevelSum::sum_host() {
  of_host_->make_room(of_host_->capacity(), request_.block_bytes());
  SparseAllreduceRequest request = step_request(of_host_.get());
  request.values = request_.input;
  request.indices = IndexSpan(request_.indices.data(), request_.index_count, request_.index_type);
  request.sum_duplicates = request_.sum_duplicates;
  request.expected_density = request_.host_density(1);
  levels_.start(Level::up, &request, failure_,
                [this, self = shared_from_this()](const std::shared_ptr<Operation>& step) {
                  if (step && !failure_) {
                    host_blocks_ = complete(*step, *of_host_);
                    request_.count_input(*step);
                  }
                  if (!levels_.has_column()) {
                    levels_.steps(Level::down).ready(down_, [this, self] { give_to_host(); });
                  } else {
                    levels_.steps(Level::across).ready(across_, [this, self] { sum_hosts(); });
                  }
                });
}

/// The second step: the ranks of a column sum what their hosts have in its range of the tensor.
void PackedTwoLevelSum::sum_hosts() {
  of_column_->make_room(of_column_->capacity(), request_.block_bytes());
  SparseAllreduceRequest request = step_request(of_column_.get());
  request.expected_density = request_.host_density(levels_.plan().most_ranks());
  if (!failure_) {
    const std::uint64_t blocks = request_.operation->layout.blocks();
    const auto columns = static_cast<std::uint64_t>(levels_.plan().columns());
    const auto column = static_cast<std::uint64_t>(levels_.place());
    const std::span<const std::int64_t> indices = std::span(of_host_->indices()).first(host_blocks_);
    // blocks / columns * column does not wrap, whatever the tensor's size.
    const auto first_of = [&](std::uint64_t c) {
      const std::uint64_t begin = blocks / columns * c + blocks % columns * c / columns;
      return std::lower_bound(indices.begin(), indices.end(), static_cast<std::int64_t>(begin)) -
             indices.begin();
    };
    const auto from = first_of(column),
               end = column + 1 == columns ? std::ssize(indices) : first_of(column + 1);
    request.values = of_host_->values() + static_cast<std::uint64_t>(from) * request_.block_bytes();
    request.indices = indices.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(end - from));
  }
  levels_.start(Level::across, &request, failure_,
                [this, self = shared_from_this()](const std::shared_ptr<Operation>& step) {
                  if (step && !failure_) column_blocks_ = complete(*step, *of_column_);
                  if (!failure_ && request_.op() == ReduceOp::avg)
                    divide(of_column_->values(), column_blocks_ * request_.record.block_elems,
                           request_.type(), levels_.plan().ranks());
                  levels_.steps(Level::down).ready(down_, [this, self] { give_to_host(); });
                });
}

/// The third step: the ranks of this host give each other what their columns have. No two have the same
/// block, so nothing is added.
void PackedTwoLevelSum::give_to_host() {
  SparseAllreduceRequest request = step_request(nullptr);
  request.op = ReduceOp::sum;
  request.values = of_column_->values();
  request.indices = std::span<const std::int64_t>(of_column_->indices()).first(column_blocks_);
  levels_.start(Level::down, &request, failure_,
                [this, self = shared_from_this()](const std::shared_ptr<Operation>& step) { done(step); });
}

/// The caller completes the last step, as it would have completed the operation: only it can be asked for
/// memory.
void PackedTwoLevelSum::done(const std::shared_ptr<Operation>& last) {
  levels_.buffers().give_back(std::move(of_host_));
  levels_.buffers().give_back(std::move(of_column_));
  if (last) request_.count_traffic(*last);
  const std::uint64_t blocks = last ? last->union_blocks.load(std::memory_order_relaxed) : 0;
  request_.operation->rest_done({.blocks = blocks, .packed = last, .failure = failure_});
  levels_.over();
}

}  // namespace nzcl::comm
