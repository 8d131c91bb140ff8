// Addresses of UDP ports: their text, and which one belongs to an interface.
#pragma once

#include <netinet/in.h>

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "verbs/datagram/datagram.h"

namespace nzcl::verbs::udp {

/// An IPv4 address and port, both in network order. Ordered, so that the sender of a datagram can be looked
/// up.
struct Address {
  std::uint32_t host = 0;
  std::uint16_t port = 0;
  auto operator<=>(const Address&) const = default;

  static Address of(const sockaddr_in& from) { return {from.sin_addr.s_addr, from.sin_port}; }
  sockaddr_in sockaddr() const;
  std::string text() const;  // "192.0.2.1:4791"
};

/// Throws Error{transport} if the text is not what Address::text() gives.
Address parse_address(const std::string& text);

/// An interface on which a port can be opened.
struct Interface {
  std::string name;
  std::uint32_t host = 0;  // its IPv4 address, in network order
  std::size_t mtu = 0;     // of its frames' contents, in bytes
};

/// The interface that the options name, or the one that suits them. Throws Error{unavailable} that says which
/// interfaces there are.
Interface find_interface(const DatagramOptions& options);

}  // namespace nzcl::verbs::udp
