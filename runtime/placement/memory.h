// Which NUMA node memory lies on.
#pragma once

#include <cstddef>
#include <span>

namespace nzcl::placement {

/// Whether this machine has a NUMA node of this number, with or without cores.
bool is_node(int node);

/// Asks the system to take the pages of `bytes` that have not been touched yet from this node, as long as it
/// has free memory. Does nothing if `node` is -1, or if the system does not support it.
void prefer_node(std::span<std::byte> bytes, int node);

/// The node that the first pages of `bytes` lie on. -1: they lie on several nodes, have not been touched yet,
/// or the system does not tell.
int node_of(std::span<const std::byte> bytes);

}  // namespace nzcl::placement
