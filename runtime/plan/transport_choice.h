// Chooses the transport of a communicator, and how its device is opened.
#pragma once

#include <string>
#include <vector>

#include "nzcl/options.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Returns the transport that the option names or, if it leaves that to nzcl, those that suit the members by
/// what they have said, the best one first. Where some members share a host and others do not, these are
/// pairs (verbs/mixed/pair.h): one transport within each host, the other one between hosts. All members come
/// to the same. Whether those of a host can share memory is tried (runtime/comm/join/device_choice.h); unless
/// the option names what they share it by, the last one needs no shared memory.
std::vector<std::string> transports_of(const Options& options, const Membership& membership);
/// The first of these. Once the members have tried, that is the one which they use.
std::string transport_of(const Options& options, const Membership& membership);

/// What this member's device is opened with.
verbs::DeviceOptions device_options(const Options& options, const Membership& membership, int numa_node);

}  // namespace nzcl::engine
