// Makes the configuration of the engines from the options, the membership, and what the transport grants.
#pragma once

#include "nzcl/options.h"
#include "runtime/plan/device_limits.h"
#include "runtime/plan/engine_config.h"
#include "runtime/plan/membership.h"

namespace nzcl::engine {

/// Returns the configuration of lane 0; other lanes differ only in their number. It is a pure function, and
/// all members come to the same result in whatever shapes the messages.
EngineConfig plan_engine(const Options& options, const Membership& membership, const DeviceLimits& limits);

}  // namespace nzcl::engine
