// Chooses the transport of a communicator.
#pragma once

#include <string>

#include "nzcl/options.h"
#include "runtime/plan/membership.h"

namespace nzcl::engine {

/// Returns the transport that the option names or, if it leaves that to nzcl, the one that suits the members.
/// All members come to the same.
std::string transport_of(const Options& options, const Membership& membership);

}  // namespace nzcl::engine
