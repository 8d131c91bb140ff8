// The parts of hwloc's description of a machine that placement needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nzcl::placement {

struct Core {
  int node = 0;  // NUMA node, as the operating system numbers it
  int cpu = 0;   // the core's first hardware thread, as the operating system numbers it
  friend bool operator==(const Core&, const Core&) = default;
};

struct Topology {
  std::vector<Core> cores;  // the cores this process may use, ordered by node, with neighbours side by side
  int nodes = 1;            // how many NUMA nodes these cores are on
  std::uint64_t cache_bytes =
      0;             // the smallest share of second-level cache of a core; 0: hwloc does not know
  std::string cpus;  // all hardware threads this process may use, such as "0-3,8"
  std::string text;  // for people: "1 package, 2 cores, 2 hardware threads, 1 NUMA node"
};

/// Describes the part of this machine that the process may use, as taskset, mpirun's binding or cgroups have
/// limited it. Throws Error{system}.
Topology read_topology();
/// Describes another machine, from a file in hwloc's XML (lstopo machine.xml), or from one of hwloc's
/// synthetic descriptions ("pack:2 [numa] core:16 pu:2"). Throws Error{invalid_argument}.
Topology read_saved_topology(const std::string& saved);

}  // namespace nzcl::placement
