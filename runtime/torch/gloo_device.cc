#include "runtime/torch/gloo_device.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "runtime/bootstrap/host_address.h"
#include "runtime/torch/fallback.h"

namespace nzcl_torch {
namespace {

using c10d::ProcessGroupGloo;

/// The address of this host from which it would send to `peer`; empty if there is no way there. Connecting a
/// socket for datagrams looks up the route and sends nothing.
std::string address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* resolved = nullptr;
  if (::getaddrinfo(peer.c_str(), "9", &hints, &resolved) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(resolved, ::freeaddrinfo);
  const int fd = ::socket(resolved->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  std::array<char, NI_MAXHOST> text{};
  const bool found = ::connect(fd, resolved->ai_addr, resolved->ai_addrlen) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text.data(), text.size(),
                                   nullptr, 0, NI_NUMERICHOST) == 0;
  ::close(fd);
  return found ? text.data() : "";
}

bool is_address(const std::string& text) {
  std::array<char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

}  // namespace

RankPlace own_place() {
  return {.host = nzcl::bootstrap::host_id(), .addresses = nzcl::bootstrap::host_addresses()};
}

GlooDevices named_devices(const std::string& interface) {
  GlooDevices devices;
  const char* const named = std::getenv("GLOO_SOCKET_IFNAME");
  if (named != nullptr && *named != '\0') {
    std::istringstream list(named);
    for (std::string name; std::getline(list, name, ',');)
      devices.push_back(ProcessGroupGloo::createDeviceForInterface(name));
  } else if (is_address(interface)) {
    devices.push_back(ProcessGroupGloo::createDeviceForHostname(interface));
  } else if (!interface.empty() && ::if_nametoindex(interface.c_str()) != 0) {
    devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
  }
  return devices;
}

GlooDevices suitable_devices(int rank, std::span<const RankPlace> places) {
  const RankPlace& own = places[static_cast<std::size_t>(rank)];
  const auto other = std::ranges::find_if(places, [&](const RankPlace& p) { return p.host != own.host; });
  std::string address = other == places.end() ? nzcl::bootstrap::own_loopback() : own.addresses.front();
  if (other != places.end()) {
    for (const std::string& peer : other->addresses) {
      const std::string found = address_towards(peer);
      if (found.empty() || found == peer)
        continue;  // the same on both hosts: the loopback address, or a bridge's
      address = found;
      break;
    }
  }
  return {ProcessGroupGloo::createDeviceForHostname(address)};
}

}  // namespace nzcl_torch
