// A lock that nobody waits for.
#pragma once

#include <atomic>

namespace nzcl {

/// A lock that is only ever tried, as in std::unique_lock(lock, std::try_to_lock). It is cheaper than a
/// std::mutex: since no thread sleeps until it is free, unlocking is a plain store.
class TryLock {
 public:
  bool try_lock() noexcept {
    return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace nzcl
