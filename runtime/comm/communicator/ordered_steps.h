// Runs steps one after the other in the order in which they were announced, each when it has become ready.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace nzcl::comm {

/// The ranks of a communicator start its operations in one order, but what an operation needs may become
/// ready in another one. Thread-safe. A step runs on a thread that calls ready() or open(); while it runs,
/// other threads leave what they bring and return.
class OrderedSteps {
 public:
  using Step = std::function<void()>;

  /// Announces a step, and returns its number.
  std::uint64_t add() {
    const std::scoped_lock lock(mutex_);
    steps_.emplace_back();
    return first_ + steps_.size() - 1;
  }
  void ready(std::uint64_t number, Step step) {
    {
      const std::scoped_lock lock(mutex_);
      steps_[number - first_] = std::move(step);
    }
    run();
  }
  /// No step runs before this call.
  void open() {
    {
      const std::scoped_lock lock(mutex_);
      open_ = true;
    }
    run();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    if (running_ || !open_) return;
    running_ = true;
    while (!steps_.empty() && steps_.front()) {
      const Step step = std::move(steps_.front());
      steps_.pop_front();
      ++first_;
      lock.unlock();
      step();
      lock.lock();
    }
    running_ = false;
  }

  std::mutex mutex_;
  std::deque<Step> steps_;   // one that is not ready is empty
  std::uint64_t first_ = 0;  // the number of the first of them
  bool open_ = false, running_ = false;
};

}  // namespace nzcl::comm
