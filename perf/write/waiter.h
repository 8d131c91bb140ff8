// How a side of a microbenchmark waits: by polling, or asleep (-e).
#pragma once

#include <poll.h>

#include <span>
#include <thread>
#include <vector>

#include "perf/write/session.h"

namespace perf::write {

enum class Waiting {
  polling,
  /// Polling with a moment between. In shared memory the sides take turns at a spin lock of libfabric's, and
  /// a poll that finds nothing takes it too (16 KiB with immediates, beside libfabric's bare loop: 0.92
  /// without the moment, 0.97 to 1.03 with it).
  pausing,
  asleep,
};

/// For things to arrive on any of the channels. One thread.
class Waiter {
 public:
  Waiter(Waiting how, std::span<Channel> channels) : how_(how), channels_(channels) {
    for (const Channel& c : channels)
      descriptors_.push_back({.fd = c.endpoint->wait_fd(), .events = POLLIN, .revents = 0});
  }
  void moved() { empty_ = 0; }
  /// After polls that found nothing. Polling gives way now and then: two sides may share a core.
  void idle() {
    if (how_ != Waiting::asleep) {
      if (how_ == Waiting::pausing) pause();
      if (++empty_ % kYieldEvery == 0) std::this_thread::yield();
      return;
    }
    bool quiet = true;
    for (const Channel& c : channels_) quiet &= c.endpoint->prepare_wait();
    if (quiet) ::poll(descriptors_.data(), descriptors_.size(), kSafetyMs);
  }

 private:
  /// Some tenths of a microsecond on today's x86 (a pause is 40 to 140 cycles), far less elsewhere.
  static void pause() {
    for (int i = 0; i < 8; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
  }

  static constexpr unsigned kYieldEvery = 64;
  static constexpr int kSafetyMs = 100;
  const Waiting how_;
  const std::span<Channel> channels_;
  std::vector<pollfd> descriptors_;
  unsigned empty_ = 0;
};

}  // namespace perf::write
