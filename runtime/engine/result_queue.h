// Results on their way to several receivers, each of which takes them at its own pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/staging.h"

namespace nzcl::engine {

/// Bounded; never allocates after construction. One thread. Every receiver takes every result, in the order
/// in which they were put in; a result leaves the queue when the last one has taken it.
class ResultQueue {
 public:
  struct Result {
    StagingPool::Index staging = 0;  // the message, with one reference of the queue's
    std::uint32_t bytes = 0;         // of the message
    std::uint64_t epoch = 0;
  };

  ResultQueue(std::size_t capacity, std::size_t receivers) : entries_(capacity), taken_(receivers, 0) {}

  bool empty() const { return oldest_ == end_; }
  bool full() const { return end_ - oldest_ == entries_.size(); }
  /// Preconditions: not full(); there are receivers.
  void push_back(const Result& result) { entries_[end_++ % entries_.size()] = {result, taken_.size()}; }
  /// What the receiver takes next; nullptr: it has everything.
  const Result* next(std::size_t receiver) const {
    return taken_[receiver] == end_ ? nullptr : &entries_[taken_[receiver] % entries_.size()].result;
  }
  /// The receiver has its next one. True: it was the last to take it, and the reference is the caller's.
  bool take(std::size_t receiver) {
    Entry& entry = entries_[taken_[receiver]++ % entries_.size()];
    if (--entry.wanted_by > 0) return false;
    ++oldest_;  // in order, as every receiver takes in order
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
