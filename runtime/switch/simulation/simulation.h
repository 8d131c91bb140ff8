// One allreduce through a simulated switch, timed by the simulation's own clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/switch/simulation/made_tensor.h"

namespace nzcl::simulation {

/// What is the same in all simulations of a table.
struct Scene {
  double bits_per_second = 100e9;  // of each rank's link, in either direction
  std::chrono::nanoseconds round_trip = std::chrono::microseconds(10);
  std::size_t mtu = 1500;
  std::uint32_t block_elements = 256;
  std::uint32_t slots = 0;  // 0: as many as an aggregator in a process has
  Overlap overlap = Overlap::all;
  /// The tensor is the largest one, halved until all ranks together send at most this many packets with
  /// values: that bounds how long the simulation takes.
  std::uint64_t most_bytes = 64 << 20, most_packets = 1 << 20;
  std::uint64_t seed = 1;
  /// What takes longer is given up.
  std::chrono::nanoseconds limit = std::chrono::milliseconds(20);
};

struct Case {
  int workers = 16;
  double density = 1, loss = 0;
};

struct Outcome {
  std::uint64_t bytes = 0;        // of the tensor
  std::uint32_t slots = 0;        // that the tensor uses
  std::uint64_t slot_bytes = 0;   // of the aggregator's memory in which they are
  double seconds = 0, bound = 0;  // S/B: the values of the union, at the link's rate
  double repeated = 0;            // packets that were sent again, for each one that had to be sent
  bool ended = true;              // within Scene::limit
  std::uint64_t wrong = 0;        // elements of what has ended, on all ranks
  std::string failure{};          // of the exchange
};

/// Sums a tensor of an eighth of the size first, so that windows and round trips are known, and times the
/// next one. Throws std::invalid_argument for settings with which there are no packets.
Outcome simulate(const Scene& scene, const Case& of);

}  // namespace nzcl::simulation
