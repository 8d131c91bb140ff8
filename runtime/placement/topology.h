// What hwloc says about the machine, reduced to what placement needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nzcl::placement {

struct Core {
  int node = 0;  // NUMA node, as the operating system numbers it
  int cpu = 0;   // its first hardware thread, as the operating system numbers it
  friend bool operator==(const Core&, const Core&) = default;
};

struct Topology {
  std::vector<Core> cores;  // those this process may use, by node, neighbours side by side
  int nodes = 1;            // NUMA nodes that have such a core
  std::uint64_t cache_bytes =
      0;             // a core's share of the second-level cache, the smallest; 0: hwloc doesn't know
  std::string cpus;  // all usable hardware threads, "0-3,8": equal on processes that share them
  std::string text;  // for people: "1 package, 2 cores, 2 threads, 1 NUMA node"
};

/// This machine, within the process's CPU affinity (taskset, mpirun's binding, cgroups). Throws
/// Error{system}.
Topology read_topology();
/// Another one: a file in hwloc's XML (lstopo machine.xml), or hwloc's synthetic description ("pack:2 [numa]
/// core:16 pu:2"). Throws Error{invalid_argument}.
Topology read_saved_topology(const std::string& saved);

}  // namespace nzcl::placement
