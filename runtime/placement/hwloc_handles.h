// Handles that own hwloc's objects and free them.
#pragma once

#include <hwloc.h>

#include <memory>
#include <type_traits>

#include "nzcl/error.h"

namespace nzcl::placement {

struct DestroyTopology {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
using TopologyHandle = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_t b) const { hwloc_bitmap_free(b); }
};
using BitmapHandle = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, FreeBitmap>;

inline TopologyHandle make_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error(ErrorCode::system, "hwloc_topology_init failed");
  return TopologyHandle(raw);
}

/// The machine's topology, or nullptr if hwloc cannot read it. It is loaded once, because hwloc takes some
/// milliseconds for it, most of which it looks for its plugins, and what is read of it does not change.
/// Thread-safe.
hwloc_topology_t machine();

}  // namespace nzcl::placement
