// A UDP socket that does not block.
#pragma once

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"

namespace nzcl::verbs::udp {

class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    if (fd_ < 0) throw Error(ErrorCode::system, fmt::format("udp: socket: {}", std::strerror(errno)));
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

  /// Returns whether the kernel took the option.
  bool set(int level, int name, int value) const {
    return ::setsockopt(fd_, level, name, &value, sizeof value) == 0;
  }
  /// Returns -1 for an option that the kernel does not have.
  int get(int level, int name) const {
    int value = 0;
    socklen_t size = sizeof value;
    return ::getsockopt(fd_, level, name, &value, &size) == 0 ? value : -1;
  }

 private:
  const int fd_;
};

}  // namespace nzcl::verbs::udp
