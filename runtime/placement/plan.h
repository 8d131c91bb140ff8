// Decides which core each engine thread gets. The same topology and request always give the same plan.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "nzcl/options.h"
#include "runtime/placement/topology.h"

namespace nzcl::placement {

struct PlacementRequest {
  int local_rank = 0;     // this member's number among those that share the cores
  int local_ranks = 1;    // how many members share the cores
  int lanes = 0;          // engine threads; 0: auto_lanes() decides
  int scan_threads = -1;  // -1: the plan decides
  Pinning pin = Pinning::automatic;
  int node = -1;  // NUMA node of the gradients; -1: not known
};

struct Placement {
  // The hardware thread to which each lane and each scan thread is pinned; -1: it may run anywhere.
  std::vector<int> lane_cpus, scan_cpus;
  // The NUMA node for slots and device: that of the request, else that of the cores. -1: the cores are on
  // several.
  int node = -1;
  std::chrono::microseconds spin{0};  // how long an engine thread with nothing to do polls before it sleeps
  std::chrono::microseconds caller_spin{0};  // the same for a caller that waits
  std::string text;                          // the plan, for people to read
};

/// The number of lanes for a member that has this many cores to itself; 0 cores: it shares one with other
/// members.
int auto_lanes(int own_cores);

/// Divides the cores between the members:
///  - Every member gets an equal share of neighbouring cores, so that it stays within a NUMA node where
///    possible. If some cores of the share are on the node of the gradients, only these are used.
///  - The lanes get the last cores of the share, and the scan threads those before them. The first cores
///    are left to the caller's own threads.
///  - If the share has fewer cores than there are threads, threads are pinned only if `pin` is "on", and
///    only callers poll. If members share a core, no thread polls.
/// Throws Error{invalid_argument} for numbers that contradict each other.
Placement plan(const Topology& topology, const PlacementRequest& request);

}  // namespace nzcl::placement
