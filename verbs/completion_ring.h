// Completions that a backend has and its owner has not fetched yet.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "verbs/transport.h"

namespace nzcl::verbs {

/// First in, first out; allocates only when it is made. One thread.
class CompletionRing {
 public:
  explicit CompletionRing(std::size_t room) : entries_(room + 1) {}
  bool empty() const { return head_ == tail_; }
  /// Precondition: fewer than `room` are inside.
  void push(const Completion& completion) {
    entries_[tail_] = completion;
    if (++tail_ == entries_.size()) tail_ = 0;
  }
  /// The oldest, as many as fit into `out`; returns how many.
  std::size_t pop(std::span<Completion> out) {
    std::size_t n = 0;
    for (; n < out.size() && !empty(); ++n) {
      out[n] = entries_[head_];
      if (++head_ == entries_.size()) head_ = 0;
    }
    if (empty()) head_ = tail_ = 0;  // the same few entries again: they are in cache
    return n;
  }

 private:
  std::vector<Completion> entries_;
  std::size_t head_ = 0, tail_ = 0;
};

}  // namespace nzcl::verbs
