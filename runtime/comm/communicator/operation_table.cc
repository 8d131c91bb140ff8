#include "runtime/comm/communicator/operation_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nzcl/error.h"
#include "runtime/comm/request/requests.h"

namespace nzcl::comm {

using engine::Operation;

std::shared_ptr<Operation> OperationTable::blocker() const {
  const auto& operation = entries_[next_index()].operation;
  return operation && !operation->finished() ? operation : nullptr;
}

std::shared_ptr<Operation> OperationTable::forget_finished() {
  std::shared_ptr<Operation> last;
  for (; oldest_ < next_epoch_; ++oldest_) {
    Entry& entry = entries_[index_of(oldest_)];
    if (!entry.operation->finished()) break;
    entry.operation->release_regions();
    last = std::move(entry.operation);
    entry = {};
  }
  if (last && !last->layout.express()) last.reset();
  return last;
}

void OperationTable::check_conflicts(std::string_view call, std::span<const std::byte> input,
                                     std::span<const std::byte> output) {
  if (const Entry* const other = find_conflict(input, output))
    throw Error(ErrorCode::invalid_usage,
                fmt::format("{}: a buffer overlaps a buffer of operation {}, which has not completed", call,
                            other->operation->epoch));
}

const OperationTable::Entry* OperationTable::find_conflict(std::span<const std::byte> input,
                                                           std::span<const std::byte> output) const {
  for (std::uint64_t epoch = oldest_; epoch < next_epoch_; ++epoch) {
    const Entry& other = entries_[index_of(epoch)];
    if (other.operation->finished()) continue;
    if (overlap(output, other.output) || overlap(output, other.input) || overlap(input, other.output))
      return &other;
  }
  return nullptr;
}

std::shared_ptr<Operation> OperationTable::conflicting(std::span<const std::byte> input,
                                                       std::span<const std::byte> output) {
  const std::scoped_lock lock(mutex_);
  const Entry* const other = find_conflict(input, output);
  return other != nullptr ? other->operation : nullptr;
}

bool OperationTable::is_closed() {
  const std::scoped_lock lock(mutex_);
  return closed_;
}

void OperationTable::add(std::shared_ptr<Operation> operation, std::span<const std::byte> input,
                         std::span<const std::byte> output, std::shared_ptr<const KeptRequest> kept) {
  if (!operation->refusal) wanted_ = next_epoch_ + 1;
  entries_[next_index()] = {
      .operation = std::move(operation), .input = input, .output = output, .kept = std::move(kept)};
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

OperationsInFlight OperationTable::in_flight() const {
  using State = OperationsInFlight::State;
  OperationsInFlight result{.first = oldest_, .states = {}};
  for (std::uint64_t epoch = oldest_; epoch < next_epoch_; ++epoch) {
    const Entry& entry = entries_[index_of(epoch)];
    result.states.push_back(entry.operation->finished() ? State::ended
                            : !entry.kept               ? State::unkept
                            : entry.kept->is_spoiled()  ? State::spoiled
                                                        : State::whole);
  }
  return result;
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
