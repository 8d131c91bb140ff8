// Whether a host has the memory that its ranks need. Without a look before, the system would end one of them
// in the middle, or an allocation would fail that says neither its size nor what is there.
#pragma once

#include <cstdint>
#include <optional>

#include "nzcl/communicator.h"
#include "perf/allreduce/settings.h"

namespace perf::allreduce {

/// Of each rank: its tensor as it was drawn, the input, and the output. The library's own memory, and that of
/// compressors, comes on top.
double least_bytes_of_rank(const Settings& settings);

/// Throws Error{system} if `ranks` of this host need more than `free` bytes. Nothing: nobody knows how many
/// there are.
void require_memory(const Settings& settings, int ranks, std::optional<std::uint64_t> free);

/// The same for a communicator that a launcher has started, on all its hosts. Collective.
void require_memory(const Settings& settings, nzcl::Communicator& communicator);

}  // namespace perf::allreduce
