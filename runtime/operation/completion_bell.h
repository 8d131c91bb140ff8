// How a finished operation wakes the thread that tells the caller about it.
#pragma once

#include <atomic>
#include <cstdint>

namespace nzcl::engine {

/// Rung by whichever thread finishes an operation, without a lock, and only if somebody listens. Thread-safe.
class CompletionBell {
 public:
  /// While somebody listens, finished() rings. The operation's own flag is set before finished() looks for
  /// listeners, and the listener looks at that flag after this; all but that last look are sequentially
  /// consistent, and the fence makes up for it: either the listener sees that the operation has finished, or
  /// the bell is rung.
  void listen() noexcept {
    listeners_.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void stop_listening() noexcept { listeners_.fetch_sub(1, std::memory_order_relaxed); }
  void finished() noexcept {
    if (listeners_.load(std::memory_order_seq_cst) > 0) ring();
  }
  void ring() noexcept {
    rings_.fetch_add(1, std::memory_order_release);
    rings_.notify_one();
  }
  std::uint32_t rings() const noexcept { return rings_.load(std::memory_order_acquire); }
  /// Returns when the bell has been rung since there were `seen` rings.
  void wait(std::uint32_t seen) const noexcept { rings_.wait(seen, std::memory_order_acquire); }

 private:
  std::atomic<int> listeners_{0};
  std::atomic<std::uint32_t> rings_{0};
};

}  // namespace nzcl::engine
