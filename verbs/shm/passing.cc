#include "verbs/shm/passing.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace nzcl::verbs::shm {
namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(kMostPassed * sizeof(int));

std::vector<Fd> descriptors_of(msghdr& header) {
  std::vector<Fd> all;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      all.emplace_back(fd);
    }
  }
  return all;
}

}  // namespace

int send_message(const Fd& socket, std::span<const std::byte> message, std::span<const int> descriptors) {
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part, header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control.data(), header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

Received receive_message(const Fd& socket, std::span<std::byte> message) {
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  iovec part{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &part, header.msg_iovlen = 1;
  header.msg_control = control.data(), header.msg_controllen = control.size();
  const ssize_t bytes = ::recvmsg(socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  Received received;
  if (bytes < 0) {
    received.error = errno;
    return received;
  }
  received.descriptors = descriptors_of(header);
  received.bytes = static_cast<std::size_t>(bytes);
  if (bytes == 0) received.error = EPIPE;
  if ((header.msg_flags & MSG_CTRUNC) != 0) received.error = EMFILE;
  return received;
}

}  // namespace nzcl::verbs::shm
