// The time that no allreduce of this scheme can beat, from the bytes that it must move.
#pragma once

#include <functional>

#include "perf/allreduce/settings.h"

namespace perf::allreduce {

/// Bytes per second that all ranks of a host together read, copy and add, out of cache.
struct MemorySpeed {
  double read = 0, copy = 0, add = 0;  // copy and add count the bytes of the source
};
/// Measures one rank's share while all `ranks` do the same, with three buffers that are out of cache. All
/// ranks call it, and `barrier` waits for all of them. The sum over the ranks is the speed of the host. It
/// takes less than a second.
MemorySpeed measure_memory(int ranks, const std::function<void()>& barrier);

struct Load {
  double bytes = 0;   // of the dense tensor, on one rank
  double blocks = 0;  // of the dense tensor
  double density = 1, union_density = 1;
  double host_density = 1;  // of the union of the ranks of one host
  int ranks = 1, aggregators = 0;
  int host_ranks = 1;                   // ranks that share a host and its link
  bool compresses = false;              // every rank adds the gradient to what it keeps, in one pass
  bool scans = true, in_place = false;  // in place, or packed: nothing is zeroed
  Collective collective = Collective::allreduce;
};

/// The shares of a rank's own blocks, and of the sum's, that the rank which sends most sends: without
/// dedicated aggregators, and of a whole tensor.
struct Shares {
  double own = 0, sums = 0;
};
Shares shares_of(Collective collective, int ranks);

/// The least seconds that the links need, at `bytes_per_second` each way. perf/README.md has the formula.
double wire_bound(const Load& load, double bytes_per_second);

/// The least bytes that a rank has to send to others: the values that are not zero, and the entropy of which
/// blocks they are in, if blocks are drawn independently: blocks * H(d) bits. With colocated aggregators it
/// sends the others' share of its own input and its share of the result, with dedicated ones its input alone.
double entropy_bytes(const Load& load);

/// The least seconds that memory needs, with all ranks on one host. Every rank's input is scanned once, or,
/// if it is compressed, added to what the rank keeps. What goes to another process is copied once, and all
/// contributions are added. Out of place, the blocks that no rank holds are zeroed.
double memory_bound(const Load& load, const MemorySpeed& speed);

}  // namespace perf::allreduce
