// Which core each engine thread gets. Pure: the same topology and request always give the same plan.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/placement/topology.h"

namespace nzcl::placement {

struct PlacementRequest {
  int local_rank = 0;  // among the members that share these cores
  int local_ranks = 1;
  int lanes = 0;          // engine threads; 0: auto_lanes
  int scan_threads = -1;  // -1: planned
  std::string pin = "auto";
  int node = -1;  // NUMA node of the gradients, if that is known
};

struct Placement {
  std::vector<int> lane_cpus,
      scan_cpus;  // one per thread: the hardware thread to pin it to, or -1 for anywhere
  int node = -1;  // of slots and device: as requested, else that of the cores; -1: several
  // How long a thread with nothing to do polls before it gives way: those here, and a caller that waits.
  std::chrono::microseconds spin{0}, caller_spin{0};
  std::string text;  // for people
};

/// Engine threads for a member with this many cores to itself (0: it shares a core).
int auto_lanes(int own_cores);

/// Divides the cores evenly between the members that share them, neighbours together, so that a member stays
/// within a NUMA node where it can. Of its share only the cores on the gradients' node count, if it has any.
/// Within its share a member's engine threads get the last cores, scan
/// threads before the lanes, and the caller's own threads keep the first. With fewer cores than its threads
/// need, nothing is pinned unless `pin` says so, and only callers spin; they do not either where members
/// share a core. Throws Error{invalid_argument} for a request that makes no sense.
Placement plan(const Topology& topology, const PlacementRequest& request);

}  // namespace nzcl::placement
