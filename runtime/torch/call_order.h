// Keeps calls in order of which some take several operations, and knows when all are over.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace nzcl_torch {

/// The ranks match operations by the order in which they are started. A call that starts its second operation
/// when its first one has ended (an allreduce of sparse tensors) holds back the calls behind it until then,
/// so that operations come in the order of the calls on every rank. Thread-safe.
class CallOrder {
 public:
  /// Runs `call` when the calls before it have been made: at once, or on the thread that releases.
  void run(std::function<void()> call) {
    const std::scoped_lock lock(mutex_);
    if (held_)
      waiting_.push_back(std::move(call));
    else
      call();
  }
  /// Called by a call: those behind it wait until release().
  void hold() { held_ = true; }
  /// Makes the rest of the call that holds, and the calls that wait. A call may hold again.
  void release(const std::function<void()>& rest) {
    const std::scoped_lock lock(mutex_);
    held_ = false;
    rest();
    while (!held_ && !waiting_.empty()) {
      const auto call = std::move(waiting_.front());
      waiting_.pop_front();
      call();
    }
  }

 private:
  // Recursive, because an operation may have ended when its call asks to be told of that: then it releases
  // within run().
  std::recursive_mutex mutex_;
  bool held_ = false;
  std::deque<std::function<void()>> waiting_;
};

/// What has begun and is not over. Thread-safe.
class Outstanding {
 public:
  /// Something begins. Returns its number.
  std::uint64_t begin() {
    const std::scoped_lock lock(mutex_);
    begun_.insert(next_);
    return next_++;
  }
  /// How many have begun so far.
  std::uint64_t begun() const {
    const std::scoped_lock lock(mutex_);
    return next_;
  }
  /// It is over.
  void end(std::uint64_t number) {
    std::vector<std::function<void()>> due;
    {
      const std::scoped_lock lock(mutex_);
      begun_.erase(number);
      std::erase_if(waiting_, [&](auto& w) {
        if (!begun_.empty() && *begun_.begin() < w.first) return false;
        due.push_back(std::move(w.second));
        return true;
      });
    }
    for (const auto& then : due) then();
  }
  /// Calls `then` when all that has begun before this number is over: at once, or by the last end().
  void when_earlier_end(std::uint64_t number, std::function<void()> then) {
    {
      const std::scoped_lock lock(mutex_);
      if (*begun_.begin() < number) {
        waiting_.emplace_back(number, std::move(then));
        return;
      }
    }
    then();
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t next_ = 0;
  std::set<std::uint64_t> begun_;
  std::vector<std::pair<std::uint64_t, std::function<void()>>> waiting_;
};

}  // namespace nzcl_torch
