#include "runtime/placement/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>

#include "nzcl/error.h"
#include "runtime/placement/hwloc_handles.h"

namespace nzcl::placement {
namespace {

std::string list_text(hwloc_const_bitmap_t set) {
  char* text = nullptr;
  if (hwloc_bitmap_list_asprintf(&text, set) < 0) return {};
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  return text;
}

std::string plural(int n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

/// The size of the second-level cache that a core has to itself, or an equal part of one that it shares with
/// others. 0: hwloc does not know.
std::uint64_t cache_share(hwloc_topology_t t, hwloc_obj_t core, hwloc_obj_type_t unit) {
  const hwloc_obj_t cache = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_L2CACHE, core);
  if (cache == nullptr) return 0;
  const int sharers = hwloc_get_nbobjs_inside_cpuset_by_type(t, cache->cpuset, unit);
  return cache->attr->cache.size / static_cast<std::uint64_t>(std::max(1, sharers));
}

/// Reduces hwloc's description of a machine to what placement needs.
Topology topology_from_hwloc(hwloc_topology_t t) {
  Topology result;
  const auto count = [&](hwloc_obj_type_t type) { return std::max(0, hwloc_get_nbobjs_by_type(t, type)); };
  // Some virtual machines describe no cores, but all have processing units.
  const hwloc_obj_type_t unit = count(HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::set<int> nodes;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(t, unit, core)) != nullptr;) {
    const int cpu = hwloc_bitmap_first(core->cpuset);
    if (cpu < 0) continue;
    int node = 0;
    for (hwloc_obj_t n = nullptr; (n = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, n)) != nullptr;) {
      if (n->cpuset && hwloc_bitmap_isset(n->cpuset, static_cast<unsigned>(cpu))) {
        node = static_cast<int>(n->os_index);
        break;
      }
    }
    nodes.insert(node);
    const std::uint64_t cache = cache_share(t, core, unit);
    result.cache_bytes = result.cores.empty() ? cache : std::min(result.cache_bytes, cache);
    result.cores.push_back({.node = node, .cpu = cpu});
  }
  if (result.cores.empty()) result.cores.push_back({});
  std::stable_sort(result.cores.begin(), result.cores.end(),
                   [](const Core& a, const Core& b) { return a.node < b.node; });
  result.nodes = std::max(1, static_cast<int>(nodes.size()));
  result.cpus = list_text(hwloc_topology_get_topology_cpuset(t));
  result.text =
      fmt::format("{}, {}, {}, {}", plural(count(HWLOC_OBJ_PACKAGE), "package"),
                  plural(static_cast<int>(result.cores.size()), "core"),
                  plural(count(HWLOC_OBJ_PU), "hardware thread"), plural(result.nodes, "NUMA node"));
  return result;
}

}  // namespace

Topology read_topology() {
  hwloc_topology_t copy = nullptr;
  if (machine() == nullptr || hwloc_topology_dup(&copy, machine()) != 0)
    throw Error(ErrorCode::system, "hwloc could not read the machine's topology");
  const TopologyHandle handle(copy);
  const BitmapHandle bound(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(handle.get(), bound.get(), HWLOC_CPUBIND_PROCESS) == 0 &&
      !hwloc_bitmap_iszero(bound.get())) {
    hwloc_topology_restrict(handle.get(), bound.get(), 0);
  }
  return topology_from_hwloc(handle.get());
}

Topology read_saved_topology(const std::string& saved) {
  const TopologyHandle handle = make_topology();
  const bool file = saved.ends_with(".xml");
  const int error = file ? hwloc_topology_set_xml(handle.get(), saved.c_str())
                         : hwloc_topology_set_synthetic(handle.get(), saved.c_str());
  if (error != 0 || hwloc_topology_load(handle.get()) != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is not a topology in hwloc's XML (*.xml), nor a synthetic description such "
                            "as \"pack:2 [numa] core:16 pu:2\"",
                            saved));
  }
  return topology_from_hwloc(handle.get());
}

}  // namespace nzcl::placement
