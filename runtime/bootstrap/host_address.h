// How this host can be reached, and what two processes on it share.
#pragma once

#include <string>
#include <vector>

namespace nzcl::bootstrap {

/// IPv4 addresses of the interfaces that are up, those that are not loopback first.
std::vector<std::string> host_addresses();
/// For people.
std::string host_name();
/// Equal for processes that share a kernel and its network.
std::string host_id();
/// Equal for processes that share a kernel and see the same /dev/shm: containers of one machine may not.
std::string shared_memory_id();
/// Equal for processes of one user that see each other's process ids: those may write each other's memory.
std::string process_space_id();

}  // namespace nzcl::bootstrap
