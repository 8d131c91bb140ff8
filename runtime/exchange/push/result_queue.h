// A queue of results for several receivers, each of which takes them at its own pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/channel/staging.h"

namespace nzcl::engine {

/// Every receiver takes every result, in the order in which the results were added. A result leaves the queue
/// when its last receiver has taken it. The queue is bounded, and does not allocate after construction. For
/// one thread.
class ResultQueue {
 public:
  struct Result {
    StagingPool::Index staging = 0;  // holds the message; the queue owns one reference to it
    std::uint32_t bytes = 0;         // of the message
    std::uint64_t epoch = 0;
  };

  ResultQueue(std::size_t capacity, std::size_t receivers) : entries_(capacity), taken_(receivers, 0) {}

  bool empty() const { return oldest_ == end_; }
  bool full() const { return end_ - oldest_ == entries_.size(); }
  /// Preconditions: the queue is not full, and there is at least one receiver.
  void push_back(const Result& result) { entries_[end_++ % entries_.size()] = {result, taken_.size()}; }
  /// Returns the result that the receiver takes next, or nullptr if it has taken all of them.
  const Result* next(std::size_t receiver) const {
    return taken_[receiver] == end_ ? nullptr : &entries_[taken_[receiver] % entries_.size()].result;
  }
  /// Marks the receiver's next result as taken. Returns true if this was the last receiver to take it. Then
  /// the queue's reference to the staging buffer passes to the caller.
  bool take(std::size_t receiver) {
    Entry& entry = entries_[taken_[receiver]++ % entries_.size()];
    if (--entry.wanted_by > 0) return false;
    ++oldest_;  // results leave in order, because every receiver takes them in order
    return true;
  }

 private:
  struct Entry {
    Result result;
    std::size_t wanted_by = 0;
  };
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> taken_;  // by receiver
  std::uint64_t oldest_ = 0, end_ = 0;
};

}  // namespace nzcl::engine
