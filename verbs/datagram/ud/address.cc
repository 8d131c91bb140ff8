#include "verbs/datagram/ud/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "nzcl/error.h"

namespace nzcl::verbs::ibv {
namespace {

constexpr std::uint32_t kMostQueuePair = (1 << 24) - 1;
constexpr std::size_t kSourceGid = 8;          // in a route header
constexpr std::size_t kSourceIpv4 = 20 + 12;   // in one of RoCEv2 over IPv4
constexpr std::size_t kMappedPrefix = 16 - 4;  // of an IPv4 address as a GID

/// Takes the number in front of the next '/' or the end, and both, from the text.
template <typename Number>
bool take_number(std::string_view& text, Number& number, int base = 10) {
  const std::string_view digits = text.substr(0, text.find('/'));
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  text.remove_prefix(std::min(text.size(), digits.size() + 1));
  return read.ec == std::errc() && read.ptr == digits.data() + digits.size();
}

bool take_gid(std::string_view& text, std::array<std::uint8_t, 16>& gid) {
  if (text.find('/') != 2 * gid.size()) return false;
  for (std::size_t i = 0; i < gid.size(); ++i) {
    const char* const at = text.data() + 2 * i;
    const auto read = std::from_chars(at, at + 2, gid[i], 16);
    if (read.ec != std::errc() || read.ptr != at + 2) return false;
  }
  text.remove_prefix(2 * gid.size() + 1);
  return true;
}

}  // namespace

std::string DatagramAddress::text() const {
  return fmt::format("{:02x}/{}/{}/{}/{}", fmt::join(sender.gid, ""), sender.queue_pair, key, lid, mtu);
}

DatagramAddress DatagramAddress::parse(const std::string& text) {
  DatagramAddress a;
  std::string_view rest = text;
  const bool readable = take_gid(rest, a.sender.gid) && take_number(rest, a.sender.queue_pair) &&
                        take_number(rest, a.key) && take_number(rest, a.lid) && take_number(rest, a.mtu);
  if (!readable || !rest.empty() || a.sender.queue_pair > kMostQueuePair || a.mtu < 256 || a.mtu > 4096) {
    throw Error(
        ErrorCode::transport,
        fmt::format("ibverbs: \"{}\" is not an address GID/queue pair/Q_Key/LID/MTU of datagrams", text));
  }
  return a;
}

DatagramSender sender_of(const std::byte* route_header, std::uint32_t queue_pair, bool ipv4) {
  DatagramSender sender{.gid = {}, .queue_pair = queue_pair};
  if (ipv4) {
    sender.gid[10] = sender.gid[11] = 0xff;
    std::memcpy(sender.gid.data() + kMappedPrefix, route_header + kSourceIpv4, 4);
  } else {
    std::memcpy(sender.gid.data(), route_header + kSourceGid, sender.gid.size());
  }
  return sender;
}

}  // namespace nzcl::verbs::ibv
