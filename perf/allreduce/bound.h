// The time that no allreduce of this scheme can beat, from the bytes that it must move.
#pragma once

#include <functional>

namespace perf::allreduce {

/// Bytes per second of all ranks of a host together, out of cache.
struct MemorySpeed {
  double read = 0, copy = 0, add = 0;  // copy and add: of the source's bytes
};
/// One rank's share, with three buffers that are out of cache as all `ranks` use theirs at the same time:
/// less than a second. All of them call it; `barrier` waits for them. The sum over the ranks is the host's.
MemorySpeed measure_memory(int ranks, const std::function<void()>& barrier);

struct Load {
  double bytes = 0;  // dense, of one rank
  double density = 1, union_density = 1;
  int ranks = 1, aggregators = 0;
  bool scans = true, in_place = false;
};

/// Seconds, with links of `bytes_per_second` each way: design.md, "Bounds to stand beside every result".
double wire_bound(const Load& load, double bytes_per_second);

/// Seconds, with all ranks on one host: every rank's input is scanned once; what goes to another process is
/// copied once; all contributions are added; what is in no union is zeroed, unless in place.
double memory_bound(const Load& load, const MemorySpeed& speed);

}  // namespace perf::allreduce
