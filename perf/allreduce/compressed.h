// Times compressed allreduces, and checks them against compression in plain loops.
#pragma once

#include "nzcl/communicator.h"
#include "perf/allreduce/measure.h"

namespace perf::allreduce {

/// Each step has another gradient of normally distributed values. The check compresses the same gradients in
/// plain loops, sums what these give by a dense allreduce, and compares the bits. Collective.
Measurement run_compressed(nzcl::Communicator& communicator, const Settings& settings,
                           const Problem& problem);

}  // namespace perf::allreduce
