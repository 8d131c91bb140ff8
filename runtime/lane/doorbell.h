// Wakes a thread that sleeps on file descriptors.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>

#include "nzcl/error.h"

namespace nzcl::engine {

/// Descriptors to sleep on; those that are -1 are left out.
using Descriptors = std::array<int, 4>;

/// Sleeps until one of the descriptors becomes readable, or `at_most` has passed. Returns false if all of
/// that time has passed.
inline bool sleep_on(const Descriptors& descriptors, std::chrono::nanoseconds at_most) noexcept {
  std::array<pollfd, std::tuple_size_v<Descriptors>> fds{};
  std::transform(descriptors.begin(), descriptors.end(), fds.begin(), [](int fd) {
    return pollfd{fd, POLLIN, 0};
  });  // poll() ignores negative descriptors
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec limit{seconds.count(), static_cast<long>((at_most - seconds).count())};
  return ::ppoll(fds.data(), fds.size(), &limit, nullptr) != 0;
}

/// An eventfd. Any thread may ring it, even in a callback of the control plane. Only one thread may sleep on
/// it and reset it: if there were two, one of them could take the ring that was meant for the other.
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
  void reset() noexcept {
    std::uint64_t rings;
    [[maybe_unused]] const auto n = ::read(fd_, &rings, sizeof rings);  // fails only if nobody has rung
  }
  /// Readable from a ring() to the next reset().
  int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

}  // namespace nzcl::engine
