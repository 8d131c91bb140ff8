// The timed loop of the peers of scripts/compare's bed "elements": sparse allreduces of single elements,
// drawn as nzcl_allreduce_perf draws them with --block 1. There is a barrier before and after each operation,
// and the slowest rank's time counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "perf/peers/peer.h"
#include "perf/peers/streams.h"

namespace perf::peers {

struct SparseAllreduce {
  std::string name;
  /// The sum over the ranks, of a stream that is the caller's. If `dense` is set it must be a dense vector;
  /// otherwise the algorithm chooses. The result stays valid until the next call.
  std::function<Vector(Stream own, bool dense)> run;
  /// Bytes that this rank sent since the last call.
  std::function<std::uint64_t()> take_sent_bytes;
};

struct ElementsCommandLine {
  std::uint32_t elements;  // of the dense vector
  int iterations, warm_up;
  std::vector<double> densities;
};
/// ELEMENTS ITERATIONS WARM_UP DENSITIES, where the densities are separated by commas. Prints what is wrong
/// and ends the program with status 2.
ElementsCommandLine parse_elements_command_line(int argc, char** argv, const char* usage);

/// Measures every algorithm at every density, with the result as the algorithm chooses ("packed") and as a
/// dense vector. Rank 0 prints
///   {"results": [{"name": the algorithm's, "density": of the ranks' inputs, "output": "packed" or "dense",
///     "came_dense": whether the result is a dense vector, "times_us": [...], "cpu_s": of all ranks per
///     operation, "wire_bytes": sent per operation by the rank that sent most, "wrong": elements}, ...]}
void measure_elements(const peer& peer, const std::vector<SparseAllreduce>& algorithms,
                      const ElementsCommandLine& command);

}  // namespace perf::peers
