// Receives datagrams from a UDP socket, many with each system call.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "verbs/datagram/datagram.h"
#include "verbs/datagram/udp/address.h"
#include "verbs/datagram/udp/socket.h"

namespace nzcl::verbs::udp {

/// The kernel passes datagrams of one sender that have come together as one message (UDP_GRO, udp(7)), which
/// is split here. What a call of receive() has no room for waits for the next call.
class Receiver {
 public:
  /// Larger datagrams than `max_bytes` are dropped. The socket must outlive the receiver.
  Receiver(const Socket& socket, std::size_t max_bytes);

  /// Names the senders: addresses[i] is that of peer i, and an empty one leaves that peer out.
  void connect(std::span<const Address> addresses);
  /// Takes datagrams into `out` and returns how many there were, as DatagramPort::receive().
  std::size_t receive(std::span<ArrivedDatagram> out) noexcept;

  std::uint64_t strange() const { return strange_; }

 private:
  /// Messages for each system call: enough that the call costs little of each if they were not joined.
  static constexpr std::size_t kBatch = 32;
  /// As aligned as a datagram has to be.
  static constexpr std::size_t kAlignment = 16;

  struct Sender {
    Address address;
    PeerId peer = 0;
  };
  /// The datagrams of a message: `size` bytes long, but for the last, and `stride` apart.
  struct Message {
    std::byte* at = nullptr;
    PeerId peer = 0;
    std::size_t bytes = 0, size = 0, stride = 0, taken = 0;
  };

  std::byte* buffer(std::size_t i) { return first_buffer_ + i * stride_; }
  const Sender* find(const Address& address) const;
  void receive_messages() noexcept;
  void accept(Message message, const Address& from) noexcept;
  bool align(Message& message) const noexcept;

  const Socket& socket_;
  const std::size_t max_bytes_;
  const bool joined_;         // whether the kernel joins datagrams
  const std::size_t stride_;  // between the buffers
  std::vector<std::byte> buffers_;
  std::byte* const first_buffer_;
  std::vector<Sender> senders_;  // in the order of their addresses
  std::array<Message, kBatch> messages_;
  std::size_t next_ = 0, count_ = 0;  // of messages_: those that wait
  std::uint64_t strange_ = 0;
};

}  // namespace nzcl::verbs::udp
