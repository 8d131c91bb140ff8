// Opens the device of a communicator, over a transport that all members can use.
#pragma once

#include <memory>
#include <string>

#include "nzcl/options.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::comm {

struct DeviceChoice {
  verbs::DeviceOptions options;  // by which it has been opened
  std::shared_ptr<verbs::Device> device;
};

/// Collective. Opens the transport that the option names or, if it leaves that to nzcl, the first one that
/// suits the members. Transports within a host are tried between every two members, or of a pair of
/// transports between every two members of each host; if one of these trials fails, all members go on to the
/// next transport, and log why.
///
/// Communication steps, for each transport within a host:
///  1. Each member opens its device, and tells the others what they need to try it, or why it cannot.
///  2. Each member tries the others, and tells them whom it cannot reach.
///
/// A device that this member has opened already (`open`, or nullptr) is not opened again with the same
/// options.
///
/// Throws Error{unavailable, system} if there is no transport left, on all members where a trial has failed,
/// and otherwise on those that cannot open their device.
DeviceChoice choose_device(const Options& options, const engine::Membership& membership, int numa_node,
                           const DeviceChoice* open, bootstrap::Rounds& meeting,
                           bootstrap::Deadline deadline);

}  // namespace nzcl::comm
