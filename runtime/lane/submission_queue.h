// Operations on their way from the threads that start them to the thread that drives a lane.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/operation/operation.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {

/// A queue, first in, first out, without a lock. One thread at a time may push, and one at a time may pop;
/// whoever makes these calls sees to that. Any thread may ask whether the queue is empty. Its capacity is
/// kMaxOperations, and no more operations than that are ever in flight.
class SubmissionQueue {
 public:
  /// Sequentially consistent, so that a caller which then reads whether the lane sleeps, and a lane which
  /// says that it sleeps and then asks whether the queue is empty, cannot both overlook each other.
  void push(Operation* operation) noexcept {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    entries_[tail % kMaxOperations] = operation;
    tail_.store(tail + 1, std::memory_order_seq_cst);
  }
  bool empty() const noexcept {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_seq_cst);
  }
  /// Returns the oldest operation, or nullptr if there is none.
  Operation* pop() noexcept {
    if (empty()) return nullptr;
    const std::uint32_t head = head_.load(std::memory_order_relaxed);
    Operation* const operation = entries_[head % kMaxOperations];
    head_.store(head + 1, std::memory_order_release);
    return operation;
  }

 private:
  std::array<Operation*, kMaxOperations> entries_{};
  std::atomic<std::uint32_t> head_{0}, tail_{0};  // both wrap at 2^32
};
static_assert((kMaxOperations & (kMaxOperations - 1)) == 0, "positions wrap at a multiple of the capacity");

}  // namespace nzcl::engine
