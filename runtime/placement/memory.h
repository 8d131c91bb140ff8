// Which NUMA node memory lies on.
#pragma once

#include <cstddef>
#include <span>

namespace nzcl::placement {

/// Whether this machine has such a NUMA node (with cores or without).
bool is_node(int node);

/// Pages of `bytes` that are touched from now on come from this node, as long as it has any. -1: no wish.
/// Where the system cannot, nothing happens.
void prefer_node(std::span<std::byte> bytes, int node);

/// The node of the first pages of `bytes`; -1: several, not touched yet, or not known.
int node_of(std::span<const std::byte> bytes);

}  // namespace nzcl::placement
