// How a side of a microbenchmark waits: it polls, or it sleeps (-e).
#pragma once

#include <poll.h>

#include <span>
#include <thread>
#include <vector>

#include "perf/pause.h"
#include "perf/write/session.h"

namespace perf::write {

enum class Waiting {
  polling,
  pausing,  // polling with perf::pause() after each poll in vain
  asleep,
};

/// Waits for something to arrive on any of the channels. Used by one thread.
class Waiter {
 public:
  Waiter(Waiting how, std::span<Channel> channels) : how_(how), channels_(channels) {
    for (const Channel& c : channels)
      descriptors_.push_back({.fd = c.endpoint->wait_fd(), .events = POLLIN, .revents = 0});
  }
  void moved() { empty_ = 0; }
  /// To be called after polls that found nothing. A side that polls gives way now and then, because the two
  /// sides may share a core.
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
  static constexpr unsigned kYieldEvery = 64;
  static constexpr int kSafetyMs = 100;
  const Waiting how_;
  const std::span<Channel> channels_;
  std::vector<pollfd> descriptors_;
  unsigned empty_ = 0;
};

}  // namespace perf::write
