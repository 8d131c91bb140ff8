#include "runtime/placement/memory.h"

#include <algorithm>

#include "nzcl/options.h"
#include "runtime/placement/hwloc_handles.h"

namespace nzcl::placement {
hwloc_topology_t machine() {
  static const TopologyHandle loaded = [] {
    TopologyHandle t = make_topology();
    // Without this flag, hwloc may change the affinity of the calling thread while it looks at the machine.
    hwloc_topology_set_flags(t.get(), HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
    if (hwloc_topology_load(t.get()) != 0) t.reset();
    return t;
  }();
  return loaded.get();
}

namespace {

/// How many bytes of a range node_of() looks at. The kernel takes time for every page that it is asked about.
constexpr std::size_t kLookAt = 64 << 10;

bool several_nodes() {
  return machine() != nullptr && hwloc_get_nbobjs_by_type(machine(), HWLOC_OBJ_NUMANODE) > 1;
}

}  // namespace

bool is_node(int node) {
  return node >= 0 && machine() != nullptr &&
         hwloc_get_numanode_obj_by_os_index(machine(), static_cast<unsigned>(node)) != nullptr;
}

void prefer_node(std::span<std::byte> bytes, int node) {
  if (node < 0 || bytes.empty() || !several_nodes()) return;
  const BitmapHandle nodes(hwloc_bitmap_alloc());
  hwloc_bitmap_only(nodes.get(), static_cast<unsigned>(node));
  // HWLOC_MEMBIND_STRICT is left out, so that the memory comes from another node when this one is full.
  hwloc_set_area_membind(machine(), bytes.data(), bytes.size(), nodes.get(), HWLOC_MEMBIND_BIND,
                         HWLOC_MEMBIND_BYNODESET);
}

int node_of(std::span<const std::byte> bytes) {
  if (bytes.empty() || !several_nodes()) return -1;
  const BitmapHandle nodes(hwloc_bitmap_alloc());
  const int result = hwloc_get_area_memlocation(machine(), bytes.data(), std::min(bytes.size(), kLookAt),
                                                nodes.get(), HWLOC_MEMBIND_BYNODESET);
  return result == 0 && hwloc_bitmap_weight(nodes.get()) == 1 ? hwloc_bitmap_first(nodes.get()) : -1;
}

}  // namespace nzcl::placement

int nzcl::numa_node_of(const void* data, std::size_t bytes) {
  return placement::node_of({static_cast<const std::byte*>(data), bytes});
}
