// Makes the engines' configuration from the options, from who the members are, and from what the transport
// grants.
#pragma once

#include "nzcl/options.h"
#include "runtime/plan/engine_config.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// The configuration of lane 0; the lanes differ in their number only. A pure function: all members come to
/// the same in what shapes the wire.
EngineConfig plan_engine(const Options& options, const Membership& membership, int numa_node,
                         const verbs::Limits& limits);

}  // namespace nzcl::engine
