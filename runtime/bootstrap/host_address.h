// How this host can be reached, and whether two processes are on one.
#pragma once

#include <string>
#include <vector>

namespace nzcl::bootstrap {

/// IPv4 addresses of the interfaces that are up, those that are not loopback first.
std::vector<std::string> host_addresses();
/// Equal for processes that share a kernel and its network.
std::string host_id();

}  // namespace nzcl::bootstrap
