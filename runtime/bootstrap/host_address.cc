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
#include <optional>
#include <utility>

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

namespace {

struct InterfaceAddress {
  bool loopback = false, v6 = false;
  std::string text;
};

/// The address of an interface that is up, if it is one of IP and not valid on one link only.
std::optional<InterfaceAddress> address_of(const ifaddrs& interface) {
  if (interface.ifa_addr == nullptr || (interface.ifa_flags & IFF_UP) == 0) return std::nullopt;
  const int family = interface.ifa_addr->sa_family;
  const void* bytes = nullptr;
  if (family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(interface.ifa_addr)->sin_addr;
  } else if (family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&v6)) bytes = &v6;
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (bytes == nullptr || ::inet_ntop(family, bytes, text.data(), text.size()) == nullptr)
    return std::nullopt;
  return InterfaceAddress{
      .loopback = (interface.ifa_flags & IFF_LOOPBACK) != 0, .v6 = family == AF_INET6, .text = text.data()};
}

std::vector<InterfaceAddress> all_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, ::freeifaddrs);
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (auto address = address_of(*i)) found.push_back(std::move(*address));
  }
  return found;
}

}  // namespace

std::vector<std::string> host_addresses() {
  auto all = all_addresses();
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.loopback, a.v6) < std::pair(b.loopback, b.v6);
  });
  std::vector<std::string> texts;
  for (auto& address : all) texts.push_back(std::move(address.text));
  if (texts.empty()) texts.emplace_back("127.0.0.1");
  return texts;
}

std::string own_loopback() {
  const auto all = all_addresses();
  const auto has = [&](const char* text) {
    return std::any_of(all.begin(), all.end(), [&](const auto& address) { return address.text == text; });
  };
  return has("::1") && !has("127.0.0.1") ? "::1" : "127.0.0.1";
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
