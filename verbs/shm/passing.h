// Sends and receives a message with descriptors over a socket of its own kind (SCM_RIGHTS, unix(7)).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "verbs/fd.h"

namespace nzcl::verbs::shm {

/// As many descriptors as the kernel takes with one message (SCM_MAX_FD).
inline constexpr std::size_t kMostPassed = 253;

/// Sends `message` with at most kMostPassed descriptors, without waiting. Returns an errno, or 0.
int send_message(const Fd& socket, std::span<const std::byte> message, std::span<const int> descriptors);

struct Received {
  int error = 0;          // an errno; EPIPE: the other end is closed
  std::size_t bytes = 0;  // how many the message had, which may be more than there was room for
  std::vector<Fd> descriptors;
};
/// Takes the next message into `message`, without waiting. Descriptors for which this process has no room are
/// the error EMFILE.
Received receive_message(const Fd& socket, std::span<std::byte> message);

}  // namespace nzcl::verbs::shm
