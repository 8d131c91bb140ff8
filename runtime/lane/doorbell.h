// Wakes a thread that sleeps on file descriptors.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

#include "nzcl/error.h"

namespace nzcl::engine {

/// An eventfd. Any thread may ring it, even in a callback of the control plane, and any number of threads may
/// sleep on it.
class Doorbell {
 public:
  Doorbell() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw Error(ErrorCode::system, std::string("eventfd: ") + std::strerror(errno));
  }
  ~Doorbell() { ::close(fd_); }
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  void ring() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(fd_, &one, sizeof one);  // fails only if it is rung already
  }
  /// Sleeps until the bell is rung, one of the descriptors becomes readable (those that are -1 are left out),
  /// or `at_most` has passed. Resets the bell.
  void sleep(std::chrono::nanoseconds at_most, std::array<int, 3> others = {-1, -1, -1}) noexcept {
    // poll() ignores negative descriptors.
    std::array<pollfd, 4> fds{
        {{fd_, POLLIN, 0}, {others[0], POLLIN, 0}, {others[1], POLLIN, 0}, {others[2], POLLIN, 0}}};
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
    const timespec limit{seconds.count(), static_cast<long>((at_most - seconds).count())};
    ::ppoll(fds.data(), fds.size(), &limit, nullptr);
    if ((fds[0].revents & POLLIN) != 0) {
      std::uint64_t rings;
      [[maybe_unused]] const auto n = ::read(fd_, &rings, sizeof rings);
    }
  }

 private:
  int fd_;
};

}  // namespace nzcl::engine
