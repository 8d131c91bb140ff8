#include "runtime/bootstrap/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>

namespace nzcl::bootstrap {

std::vector<std::string> host_addresses() {
  std::vector<std::string> outward, loopback;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, ::freeifaddrs);
    for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0)
        continue;
      std::array<char, INET_ADDRSTRLEN> text{};
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text.data(),
                  text.size());
      ((i->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : outward).emplace_back(text.data());
    }
  }
  outward.insert(outward.end(), loopback.begin(), loopback.end());
  if (outward.empty()) outward.emplace_back("127.0.0.1");
  return outward;
}

std::string host_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  std::array<char, 256> space{};
  const auto n = ::readlink("/proc/self/ns/net", space.data(), space.size() - 1);
  return id + " " + (n > 0 ? std::string(space.data(), static_cast<std::size_t>(n)) : std::string());
}

}  // namespace nzcl::bootstrap
