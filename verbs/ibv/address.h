// What peers must know of an endpoint before they can call it.
#pragma once

#include <cstdint>
#include <string>

namespace nzcl::verbs::ibv {

/// 64 random bits. Whoever shows those of an endpoint has been in its meeting.
using CallToken = std::uint64_t;

/// The largest number of a queue pair, of a packet, and of what else has 24 bits.
inline constexpr std::uint32_t kMost24Bits = (1 << 24) - 1;

/// Where the calls of an endpoint arrive. It is the same for all peers, so a meeting has to bring one of each
/// endpoint to each other one, and it has as few random bytes as possible, which do not shrink. The struct
/// travels as these bytes, because both sides run the same version of nzcl.
struct EndpointAddress {
  std::uint8_t gid[16] = {};
  CallToken token = 0;      // what a call must show
  std::uint32_t calls = 0;  // number of the UD queue pair for calls
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;  // ibv_mtu
  std::uint8_t ethernet = 0;

  /// The Q_Key of the queue pair for calls. With the upper bit set, a device would send its own queue pair's
  /// key instead.
  std::uint32_t key() const { return static_cast<std::uint32_t>(token >> 33); }
  std::string encode() const;
  /// Throws Error{transport} if `text` is not an address.
  static EndpointAddress decode(const std::string& text);
};
static_assert(sizeof(EndpointAddress) == 32);

}  // namespace nzcl::verbs::ibv
