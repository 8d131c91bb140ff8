// Chooses the transport of a communicator, and how its device is opened.
#pragma once

#include <string>

#include "nzcl/options.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Returns the transport that the option names or, if it leaves that to nzcl, the one that suits the members.
/// All members come to the same.
std::string transport_of(const Options& options, const Membership& membership);

/// What this member's device is opened with.
verbs::DeviceOptions device_options(const Options& options, const Membership& membership, int numa_node);

}  // namespace nzcl::engine
