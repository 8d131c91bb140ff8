// A queue of results for several receivers, each of which takes them at its own pace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/channel/ready_set.h"
#include "runtime/channel/staging.h"
#include "runtime/wire/collective.h"

namespace nzcl::engine {

/// Every receiver takes the results that are for it, in the order in which they were added. A result leaves
/// the queue when its last receiver has taken it, and all before it have left. The queue is bounded, and does
/// not allocate after construction. For one thread.
class ResultQueue {
 public:
  struct Result {
    StagingPool::Index staging = 0;  // holds the message; the queue owns one reference to it
    std::uint32_t bytes = 0;         // of the message
    std::uint64_t epoch = 0;
    wire::Audience audience = {};
    bool placed = false;  // what the local worker gets is in its output already
    bool sealed = false;  // it was sent to one of them, so its seal is there
  };

  /// `receivers` are the ranks that may be in an audience. Below they are numbered by their place in it.
  ResultQueue(std::size_t capacity, std::vector<std::uint16_t> receivers)
      : entries_(capacity),
        receivers_(std::move(receivers)),
        taken_(receivers_.size(), 0),
        waiting_(receivers_.size()) {}

  bool empty() const { return oldest_ == end_; }
  std::size_t room() const { return entries_.size() - (end_ - oldest_); }
  /// Preconditions: the queue has room, and at least one receiver is in the audience.
  void push_back(const Result& result) {
    std::size_t wanted_by = 0;
    for (std::size_t i = 0; i < receivers_.size(); ++i) {
      if (!result.audience.has(receivers_[i])) continue;
      ++wanted_by;
      waiting_.insert(i);
    }
    entries_[end_++ % entries_.size()] = {result, wanted_by};
  }
  /// Returns the result that the receiver takes next, or nullptr if it has taken all of them.
  const Result* next(std::size_t receiver) const {
    const std::uint64_t at = skip(receiver);
    return at == end_ ? nullptr : &entries_[at % entries_.size()].result;
  }
  /// Notes that the receiver's next result has its seal from now on. Returns whether it had it before.
  bool seal_next(std::size_t receiver) {
    return std::exchange(entries_[skip(receiver) % entries_.size()].result.sealed, true);
  }
  /// Calls visit(receiver) for all receivers that have not taken all of their results, in ascending order.
  template <typename Visit>
  void for_each_waiting(Visit visit) const {
    waiting_.for_each(visit);
  }
  /// Marks the receiver's next result as taken. Returns true if this was the last receiver to take it. Then
  /// the queue's reference to the staging buffer passes to the caller.
  bool take(std::size_t receiver) {
    const std::uint64_t at = skip(receiver);
    taken_[receiver] = at + 1;
    if (skip(receiver) == end_) waiting_.erase(receiver);
    if (--entries_[at % entries_.size()].wanted_by > 0) return false;
    while (oldest_ < end_ && entries_[oldest_ % entries_.size()].wanted_by == 0) ++oldest_;
    return true;
  }

 private:
  struct Entry {
    Result result;
    std::size_t wanted_by = 0;
  };
  /// Returns the position of the receiver's next result, behind those for others. Entries behind which a
  /// receiver has not looked may have left, and their places may be in use again.
  std::uint64_t skip(std::size_t receiver) const {
    std::uint64_t at = std::max(taken_[receiver], oldest_);
    while (at < end_ && !entries_[at % entries_.size()].result.audience.has(receivers_[receiver])) ++at;
    return at;
  }

  std::vector<Entry> entries_;
  std::vector<std::uint16_t> receivers_;
  std::vector<std::uint64_t> taken_;  // by receiver
  ReadySet waiting_;                  // receivers that have not taken all of their results
  std::uint64_t oldest_ = 0, end_ = 0;
};

}  // namespace nzcl::engine
