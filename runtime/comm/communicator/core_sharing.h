// Whether a thread has its core to itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "runtime/plan/tuning.h"

namespace nzcl::comm {

/// Tells by the time that a yield takes whether another thread ran meanwhile. How long one takes that returns
/// at once depends on the machine (0.3 to 1.4 us have been seen, the latter in a virtual machine), so it is
/// compared with the least so far. Until a yield has returned at once, no core seems to be shared.
/// Thread-safe.
class CoreSharing {
 public:
  /// Takes how long a yield took. Returns true if another thread had the core.
  bool note_yield(std::chrono::nanoseconds took) noexcept {
    const auto least = std::min(took.count(), least_.load(std::memory_order_relaxed));
    least_.store(least, std::memory_order_relaxed);  // a lesser one that another thread lost comes again
    const auto lent = std::max<std::chrono::nanoseconds>(
        engine::kLentCoreTime, engine::kLentCoreYields * std::chrono::nanoseconds(least));
    const bool shared = took >= lent;
    shared_.store(shared, std::memory_order_relaxed);
    return shared;
  }
  /// What the last yield has shown.
  bool shared() const noexcept { return shared_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::chrono::nanoseconds::rep> least_{
      std::numeric_limits<std::chrono::nanoseconds::rep>::max()};
  std::atomic<bool> shared_{false};
};

}  // namespace nzcl::comm
