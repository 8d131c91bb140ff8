// How a side of a microbenchmark waits: by polling, or asleep (-e).
#pragma once

#include <poll.h>

#include <thread>

#include "verbs/transport.h"

namespace perf::write {

class Waiter {
 public:
  explicit Waiter(bool asleep) : events_(asleep) {}
  void moved() { empty_ = 0; }
  /// After a poll that found nothing. Polling gives way now and then: two sides may share a core.
  void idle(nzcl::verbs::Endpoint& endpoint) {
    if (!events_) {
      if (++empty_ % kYieldEvery == 0) std::this_thread::yield();
      return;
    }
    if (!endpoint.prepare_wait()) return;
    pollfd fd{.fd = endpoint.wait_fd(), .events = POLLIN, .revents = 0};
    ::poll(&fd, 1, kSafetyMs);
  }

 private:
  static constexpr unsigned kYieldEvery = 64;
  static constexpr int kSafetyMs = 100;
  bool events_;
  unsigned empty_ = 0;
};

}  // namespace perf::write
