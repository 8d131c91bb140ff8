// Addresses of hosts, IPv4 and IPv6 alike.
#pragma once

#include <asio.hpp>

#include <string>
#include <vector>

#include "runtime/bootstrap/sockets.h"

namespace nzcl::bootstrap {

using Addresses = std::vector<asio::ip::address>;

/// Whether `host` is an address and not a name. IPv6 addresses may stand in brackets.
bool is_address(const std::string& host);
/// All addresses of a name, in the order in which the system wants them to be tried, or the one address that
/// `host` is. Asks the system's resolver, which may take seconds. Throws std::system_error.
Addresses resolve(const std::string& host);

/// Whether only processes of this host can reach the address.
bool is_loopback(const asio::ip::address& address);
/// Also true of no addresses at all.
bool are_loopback(const Addresses& addresses);

/// "127.0.0.1:4711" or "[::1]:4711".
std::string text_of(const Tcp::endpoint& endpoint);

}  // namespace nzcl::bootstrap
