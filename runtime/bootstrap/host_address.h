// By which addresses other hosts reach this one, and what the processes of one host share with each other.
#pragma once

#include <string>
#include <vector>

namespace nzcl::bootstrap {

/// The IPv4 addresses of all interfaces that are up; loopback addresses come last.
std::vector<std::string> host_addresses();
/// For error messages and logs.
std::string host_name();
/// Equal for processes that run under the same kernel and in the same network namespace.
std::string host_id();
/// Equal for processes that run under the same kernel and in the same IPC namespace. Only they are asked to
/// share memory, and whether they can is tried: containers of one IPC namespace may see different /dev/shm.
std::string shared_memory_id();
/// Equal for processes of the same user that see each other's process ids, which is what the kernel demands
/// before one process may write the memory of another.
std::string process_space_id();

}  // namespace nzcl::bootstrap
