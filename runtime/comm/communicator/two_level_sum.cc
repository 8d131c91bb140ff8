#include "runtime/comm/communicator/two_level_sum.h"

#include <algorithm>

#include "runtime/base/plain_floats.h"
#include "runtime/comm/communicator/dense_two_level_sum.h"
#include "runtime/comm/communicator/packed_two_level_sum.h"
#include "runtime/comm/lists/index_list.h"
#include "runtime/kernels/reduce.h"
#include "runtime/operation/index_memory.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {

std::chrono::nanoseconds TwoLevelRequest::level_timeout() const {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24);
  return std::min<std::chrono::nanoseconds>(timeout + engine::kLevelGrace, kLongest);
}

void TwoLevelRequest::set_indices(const IndexSpan& list, bool duplicates) {
  const auto* const from = static_cast<const std::byte*>(list.data());
  index_count = list.size();
  index_type = list.type();
  indices.assign(from, from + index_count * index_bytes(index_type));
  sum_duplicates = duplicates;
}

double TwoLevelRequest::host_density(int ranks) const {
  const wire::Density density = record.density();
  return density.known() ? std::min(1.0, ranks * density.share()) : 0;
}

void TwoLevelRequest::count_input(const engine::Operation& step) const {
  operation->add(operation->input_blocks, step.input_blocks.load(std::memory_order_relaxed));
}

void TwoLevelRequest::count_traffic(const engine::Operation& step) const {
  operation->add(operation->bytes_sent, step.bytes_sent.load(std::memory_order_relaxed));
  operation->add(operation->bytes_received, step.bytes_received.load(std::memory_order_relaxed));
}

void TwoLevelSum::give_list(const StagedWork& staged) {
  const PlainFloats floats;  // for the sums of duplicates
  try {
    take_list(staged.list_for_others().value());
  } catch (const std::exception& e) {
    refuse(failure_of(e));
  }
}

std::shared_ptr<TwoLevelSum> make_two_level_sum(Levels& levels, TwoLevelRequest request) {
  if (request.record.packed_result != 0)
    return std::make_shared<PackedTwoLevelSum>(levels, std::move(request));
  return std::make_shared<DenseTwoLevelSum>(levels, std::move(request));
}

void divide(std::byte* share, std::uint64_t elements, DataType type, int ranks) {
  if (elements == 0) return;
  const std::byte* const source = share;
  reduce_kernel(type, ReduceOp::avg)(share, &source, 1, elements, {.ranks = ranks, .with_zero = false});
}

}  // namespace nzcl::comm
