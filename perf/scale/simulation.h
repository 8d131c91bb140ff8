// One allreduce of many simulated ranks, timed by the simulation's own clock.
#pragma once

#include <cstdint>
#include <string>

#include "nzcl/options.h"
#include "perf/scale/core.h"
#include "perf/scale/tensors.h"
#include "perf/scale/timeline.h"

namespace perf::scale {

/// What a transport between hosts grants and takes.
enum class Transport : std::uint8_t { ibverbs, tcp };

/// What is the same in all rows of a table.
struct Scene {
  Transport transport = Transport::ibverbs;
  double gigabits = 100;  // a second, of each host's link in either direction
  Time delay = seconds(2e-6);
  Time link_message{};  // that a message takes of a link beside its bytes
  int rack_hosts = 0;   // hosts at one switch; 0: all
  double oversubscription = 1;
  std::uint64_t block_elements = 256;
  Overlap overlap = Overlap::random;
  nzcl::SumOrder sum_order = nzcl::SumOrder::rank;
  Time step = seconds(40e-6);  // from the end of a hierarchy's step until the next one begins
  /// For how many bytes each byte of values stands. Memory and time of a simulation follow it, and what a
  /// tensor, a slice and a message have beside values is not coarse.
  int coarseness = 1;
  bool one_core = false;  // of a rank, for all its lanes; otherwise each lane has one
  /// A hierarchy of more ranks has no meeting.
  int most_ranks_that_meet = 256;
  std::uint64_t seed = 1;
  /// Of this process, resident. A case that takes more is given up before the machine runs out of it.
  std::uint64_t most_memory = std::uint64_t{4} << 30;
};

struct Case {
  int ranks = 16, hosts = 16;
  std::uint64_t bytes = 0;  // of the tensor
  double density = 1;       // share of its blocks that a rank has
  nzcl::Algorithm algorithm = nzcl::Algorithm::automatic;
};

struct Outcome {
  nzcl::Algorithm algorithm = nzcl::Algorithm::automatic;  // the one that was taken
  double seconds = 0;                                      // until the last rank has its result
  double bound = 0;               // of the bytes that have to leave a host and come to it, on its link
  std::uint64_t host_bytes = 0;   // that left the host which sent most, with headers and frames
  double bound_bytes = 0;         // those of the bound
  std::uint64_t messages = 0;     // of all ranks
  std::uint64_t wrong = 0;        // elements that differ from the plain sum, on all ranks
  std::uint64_t fingerprint = 0;  // of the times at which the ranks had their results
  std::string failure{};          // why it came to no end
};

/// Throws nzcl::Error for a case that the library refuses, std::invalid_argument for settings that cannot be,
/// and std::runtime_error for a case that takes too much memory.
Outcome simulate(const Scene& scene, const Case& of);

}  // namespace perf::scale
