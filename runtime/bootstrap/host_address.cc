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
namespace {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string namespace_id(const std::string& kind) {
  std::array<char, 256> target{};
  const auto n = ::readlink(("/proc/self/ns/" + kind).c_str(), target.data(), target.size() - 1);
  return n > 0 ? std::string(target.data(), static_cast<std::size_t>(n)) : std::string();
}

}  // namespace

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

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string host_id() { return boot_id() + " " + namespace_id("net"); }

std::string shared_memory_id() { return boot_id() + " " + namespace_id("ipc"); }

std::string process_space_id() {
  return boot_id() + " " + namespace_id("pid") + " " + namespace_id("user") + " " +
         std::to_string(::geteuid());
}

}  // namespace nzcl::bootstrap
