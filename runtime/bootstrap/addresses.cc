#include "runtime/bootstrap/addresses.h"

#include <fmt/format.h>

#include <algorithm>

namespace nzcl::bootstrap {
namespace {

std::string without_brackets(const std::string& host) {
  const bool has = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  return has ? host.substr(1, host.size() - 2) : host;
}

/// A socket for both families shows an IPv4 address as an IPv6 address that contains it.
asio::ip::address plain(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

}  // namespace

bool is_address(const std::string& host) {
  asio::error_code error;
  asio::ip::make_address(without_brackets(host), error);
  return !error;
}

Addresses resolve(const std::string& host) {
  asio::io_context io;
  Addresses all;
  for (const auto& entry : Tcp::resolver(io).resolve(without_brackets(host), "")) {
    const auto address = entry.endpoint().address();
    if (std::find(all.begin(), all.end(), address) == all.end()) all.push_back(address);
  }
  return all;
}

bool is_loopback(const asio::ip::address& address) { return plain(address).is_loopback(); }

bool are_loopback(const Addresses& addresses) {
  return std::all_of(addresses.begin(), addresses.end(), is_loopback);
}

std::string text_of(const Tcp::endpoint& endpoint) {
  const auto address = plain(endpoint.address());
  return fmt::format(fmt::runtime(address.is_v6() ? "[{}]:{}" : "{}:{}"), address.to_string(),
                     endpoint.port());
}

}  // namespace nzcl::bootstrap
