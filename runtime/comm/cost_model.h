// From which size on a run of blocks is worth a gather entry, or a write, of its own. Such choices shape what
// is sent how, never results.
#pragma once

#include <cstdint>

#include "verbs/transport.h"

namespace nzcl::comm {

/// Runs from this many bytes on are gathered from the user's buffer: there the copy that this saves costs
/// more than the entry.
std::uint64_t gather_from(const verbs::Costs& costs);

/// Whether small operations take one hop, every rank sending its contribution to every other, instead of two,
/// to an aggregator and back. That halves the latency, and makes ranks (ranks - 1) messages of 2 (ranks - 1):
/// worth it only as long as those are no more. (4 ranks on 2 cores, 8 B: tcp 83 us in one hop, 55 us in two;
/// cma 12.6 and 11.9, 8 ranks 51 and 34.)
bool in_one_hop(int ranks);

/// Results whose runs average this many bytes or more are written to their places: `ranks` - 1 writes then do
/// what otherwise `ranks` copies out of messages do. The largest number: never worth it.
std::uint64_t direct_from(const verbs::Costs& costs, int ranks);

}  // namespace nzcl::comm
