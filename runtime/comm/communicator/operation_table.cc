#include "runtime/comm/communicator/operation_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/comm/request/requests.h"

namespace nzcl::comm {

using engine::Operation;

std::shared_ptr<Operation> OperationTable::blocker() const {
  const auto& operation = entries_[next_index()].operation;
  return operation && !operation->finished() ? operation : nullptr;
}

/// Drops the references to the oldest operations, as far as they have finished. This happens just before the
/// next operation is made, so that the allocator can reuse memory that is still in cache.
void OperationTable::forget_finished() {
  for (; oldest_ < next_epoch_; ++oldest_) {
    Entry& entry = entries_[index_of(oldest_)];
    if (!entry.operation->finished()) break;
    entry.operation->release_regions();
    entry = {};
  }
}

void OperationTable::check_conflicts(std::string_view call, std::span<const std::byte> input,
                                     std::span<const std::byte> output) {
  forget_finished();
  for (std::uint64_t epoch = oldest_; epoch < next_epoch_; ++epoch) {
    const Entry& other = entries_[index_of(epoch)];
    if (other.operation->finished()) continue;
    if (overlap(output, other.output) || overlap(output, other.input) || overlap(input, other.output)) {
      throw Error(ErrorCode::invalid_usage,
                  fmt::format("{}: a buffer overlaps a buffer of operation {}, which has not completed", call,
                              epoch));
    }
  }
}

void OperationTable::add(std::shared_ptr<Operation> operation, std::span<const std::byte> input,
                         std::span<const std::byte> output) {
  if (!operation->refusal) wanted_ = next_epoch_ + 1;
  entries_[next_index()] = {.operation = std::move(operation), .input = input, .output = output};
  ++next_epoch_;
}

bootstrap::Progress OperationTable::progress() {
  const std::scoped_lock lock(mutex_);
  std::uint64_t finished = oldest_;
  while (finished < next_epoch_ && entries_[index_of(finished)].operation->finished()) ++finished;
  return {.begun = next_epoch_, .wanted = wanted_, .finished = finished};
}

std::vector<std::shared_ptr<Operation>> OperationTable::all() const {
  std::vector<std::shared_ptr<Operation>> operations;
  for (const Entry& entry : entries_) {
    if (entry.operation) operations.push_back(entry.operation);
  }
  return operations;
}

void OperationTable::fail_all(const Failure& failure) {
  const std::scoped_lock lock(mutex_);
  for (const auto& operation : all()) operation->fail(failure);
}

std::optional<engine::Patience> OperationTable::patience(std::uint32_t lane, std::uint32_t lanes,
                                                         engine::Patience otherwise) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  std::optional<engine::Patience> least;
  for (std::uint64_t epoch = oldest_; epoch < next_epoch_; ++epoch) {
    Entry& entry = entries_[index_of(epoch)];
    const auto& operation = entry.operation;
    if (operation->finished() || !operation->layout.on_lane(lane, lanes)) continue;
    if (entry.seen == verbs::Clock::time_point{}) entry.seen = verbs::Clock::now();
    const engine::Patience its{.since = std::max(otherwise.since, entry.seen), .timeout = operation->timeout};
    if (!least || its.end() < least->end()) least = its;
  }
  return least.value_or(otherwise);
}

void OperationTable::release_finished() {
  std::array<std::shared_ptr<Operation>, engine::kMaxOperations> finished;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;  // another call holds the lock, and this one can be made up for later
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto& operation = entries_[i].operation;
      if (operation && operation->finished()) finished[i] = operation;
    }
  }
  for (const auto& operation : finished) {
    if (operation) operation->release_regions();
  }
}

}  // namespace nzcl::comm
