#include "verbs/datagram/udp/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

#include "nzcl/error.h"

namespace nzcl::verbs::udp {
namespace {

std::string host_text(std::uint32_t host) {
  std::array<char, INET_ADDRSTRLEN> text{};
  in_addr address{};
  address.s_addr = host;
  ::inet_ntop(AF_INET, &address, text.data(), text.size());
  return text.data();
}

std::size_t mtu_of(const std::string& name) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Error(ErrorCode::system, fmt::format("socket: {}", std::strerror(errno)));
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  const int result = ::ioctl(fd, SIOCGIFMTU, &request);
  const int why = errno;
  ::close(fd);
  if (result != 0)
    throw Error(ErrorCode::system, fmt::format("the MTU of interface {}: {}", name, std::strerror(why)));
  return static_cast<std::size_t>(request.ifr_mtu);
}

struct Listed {
  std::string name;
  std::uint32_t host;
  bool loopback;
};

std::vector<Listed> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0)
    throw Error(ErrorCode::system, fmt::format("getifaddrs: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<Listed> all;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) continue;
    sockaddr_in address{};
    std::memcpy(&address, i->ifa_addr, sizeof address);
    all.push_back({i->ifa_name, address.sin_addr.s_addr, (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return all;
}

bool suits(const Listed& i, const DatagramOptions& options) {
  if (!options.interface.empty())
    return i.name == options.interface || host_text(i.host) == options.interface;
  return i.loopback == options.one_host;
}

}  // namespace

sockaddr_in Address::sockaddr() const {
  sockaddr_in s{};
  s.sin_family = AF_INET;
  s.sin_addr.s_addr = host;
  s.sin_port = port;
  return s;
}

std::string Address::text() const { return fmt::format("{}:{}", host_text(host), ntohs(port)); }

Address parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  in_addr host{};
  std::uint16_t port = 0;
  if (colon != std::string::npos && ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &host) == 1) {
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + colon + 1, end, port);
    if (read.ec == std::errc() && read.ptr == end && port != 0) return {host.s_addr, htons(port)};
  }
  throw Error(ErrorCode::transport, fmt::format("udp: \"{}\" is not an address like 192.0.2.1:4791", text));
}

Interface find_interface(const DatagramOptions& options) {
  std::string names;
  for (const Listed& i : list_interfaces()) {
    if (suits(i, options)) return {i.name, i.host, mtu_of(i.name)};
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", i.name, host_text(i.host));
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("udp: no interface with an IPv4 address {}; those that are up: {}",
                          options.interface.empty()
                              ? std::string(options.one_host ? "of this host's loopback"
                                                             : "that other hosts can reach")
                              : fmt::format("is named or has the address \"{}\"", options.interface),
                          names.empty() ? "none" : names));
}

}  // namespace nzcl::verbs::udp
