// By which addresses other hosts reach this one, and what the processes of one host share with each other.
#pragma once

#include <string>
#include <vector>

namespace nzcl::bootstrap {

/// The addresses of all interfaces that are up, IPv4 before IPv6; loopback addresses come last. IPv6
/// addresses that are valid on one link only are left out, because other hosts would have to know on which.
std::vector<std::string> host_addresses();
/// The address by which processes of this host reach each other: 127.0.0.1, or ::1 if the host has only that.
std::string own_loopback();
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
