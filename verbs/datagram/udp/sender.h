// Sends datagrams over a UDP socket, many with each system call.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "verbs/datagram/datagram.h"
#include "verbs/datagram/udp/socket.h"

namespace nzcl::verbs::udp {

/// Neighbours in a batch that go to the same peer and have the same size are handed to the kernel as one
/// message, which it cuts into datagrams again (UDP_SEGMENT, udp(7)). So they pass most of the kernel, and
/// virtual links, together. The first refusal of such a message ends this for the whole port.
class Sender {
 public:
  /// `max_bytes` is the size of the largest datagram that is sent. The socket must outlive the sender.
  Sender(const Socket& socket, std::size_t max_bytes);

  /// peers[i] is the address of peer i; one without a port number leaves that peer out.
  void connect(std::vector<sockaddr_in> peers) { peers_ = std::move(peers); }
  void send_apart() { joins_ = false; }
  /// Sends datagrams in order and returns how many were accepted, as DatagramPort::send().
  std::size_t send(std::span<const Datagram> datagrams) noexcept;

  std::uint64_t refused() const { return refused_; }
  std::uint64_t joined() const { return joined_; }  // those that were handed over behind another one

 private:
  struct Messages;
  bool can_be_sent(const Datagram& datagram) const {
    return datagram.peer < peers_.size() && peers_[datagram.peer].sin_port != 0 &&
           datagram.bytes.size() <= max_bytes_;
  }
  std::size_t run_length(std::span<const Datagram> datagrams) const noexcept;
  std::size_t send_some(std::span<const Datagram> datagrams) noexcept;
  std::size_t skip_refused(std::size_t count, int error) noexcept;

  const Socket& socket_;
  const std::size_t max_bytes_;
  bool joins_;
  std::vector<sockaddr_in> peers_;
  std::uint64_t refused_ = 0, joined_ = 0;
};

}  // namespace nzcl::verbs::udp
