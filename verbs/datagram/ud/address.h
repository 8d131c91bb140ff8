// Addresses of UD queue pairs: their text, and how the sender of a datagram is found.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace nzcl::verbs::ibv {

/// Bytes that a device puts in front of every datagram: the global route header. With RoCEv2 over IPv4 its
/// last 20 bytes are the IPv4 header, and the first 20 are undefined.
inline constexpr std::size_t kRouteHeaderBytes = 40;

/// What tells the senders of datagrams apart.
struct DatagramSender {
  std::array<std::uint8_t, 16> gid{};
  std::uint32_t queue_pair = 0;
  auto operator<=>(const DatagramSender&) const = default;
};

struct DatagramAddress {
  DatagramSender sender;
  std::uint32_t key = 0;  // the queue pair takes datagrams with this Q_Key only
  std::uint16_t lid = 0;
  std::uint16_t mtu = 0;  // in bytes

  std::string text() const;  // "00000000000000000000ffff0a4d0001/17/12345678/0/1024"
  /// Throws Error{transport} if the text is not what text() gives.
  static DatagramAddress parse(const std::string& text);
};

/// The sender, as the route header and the completion name him. `ipv4` says whether the receiver's own GID is
/// one of RoCEv2 over IPv4, because only packets of the same kind reach it.
DatagramSender sender_of(const std::byte* route_header, std::uint32_t queue_pair, bool ipv4);

}  // namespace nzcl::verbs::ibv
