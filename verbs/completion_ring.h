// Completions that a backend has collected and the owner of its endpoint has not polled yet.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "verbs/transport.h"

namespace nzcl::verbs {

/// A queue, first in, first out. It allocates only when it is constructed. For one thread.
class CompletionRing {
 public:
  explicit CompletionRing(std::size_t room) : entries_(room + 1) {}
  bool empty() const { return head_ == tail_; }
  /// Precondition: fewer than `room` completions are in the ring.
  void push(const Completion& completion) {
    entries_[tail_] = completion;
    if (++tail_ == entries_.size()) tail_ = 0;
  }
  /// Moves the oldest completions to `out`, as many as fit, and returns how many these are.
  std::size_t pop(std::span<Completion> out) {
    std::size_t n = 0;
    for (; n < out.size() && !empty(); ++n) {
      out[n] = entries_[head_];
      if (++head_ == entries_.size()) head_ = 0;
    }
    if (empty()) head_ = tail_ = 0;  // starts over with the first entries, which are still in the cache
    return n;
  }

 private:
  std::vector<Completion> entries_;
  std::size_t head_ = 0, tail_ = 0;
};

}  // namespace nzcl::verbs
