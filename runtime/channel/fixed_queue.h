// A first-in-first-out queue of bounded size that does not allocate after construction. For one thread.
#pragma once

#include <cstddef>
#include <vector>

namespace nzcl::engine {

template <typename T>
class FixedQueue {
 public:
  FixedQueue() = default;
  explicit FixedQueue(std::size_t capacity) : items_(capacity) {}

  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  T& front() { return items_[first_]; }
  const T& front() const { return items_[first_]; }
  T& back() { return items_[place(count_ - 1)]; }
  /// Precondition: size() < capacity.
  void push_back(T item) {
    items_[place(count_)] = item;
    ++count_;
  }
  void pop_front() {
    first_ = place(1);
    --count_;
  }

 private:
  /// Where the i-th item is, or would be. Divisions take long.
  std::size_t place(std::size_t i) const {
    const std::size_t at = first_ + i;
    return at < items_.size() ? at : at - items_.size();
  }

  std::vector<T> items_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace nzcl::engine
