// How the ranks of Gloo's drivers meet, over TCP, which is Gloo's only transport. There is one group per
// process.
#pragma once

#include <cstddef>
#include <memory>

#include "perf/peers/peer.h"

namespace gloo::rendezvous {
class Context;
}

namespace perf::peers {

/// RANK and WORLD_SIZE place this process, and `address` is its own. The ranks meet in `folder`, which is
/// empty before. False if one of the variables is missing. Gloo's exceptions pass through.
bool meet_over_gloo(const char* folder, const char* address, peer& self);
/// After they have met.
const std::shared_ptr<gloo::rendezvous::Context>& gloo_context();
/// Gloo's ring allreduce; `input` nullptr: in place.
void gloo_allreduce(const float* input, float* output, std::size_t count);
/// Waits for all ranks, so that none loses its connections before it is through.
void leave_gloo();

}  // namespace perf::peers
