// Opens the device of a communicator, over a transport that all members can use.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nzcl/options.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::comm {

struct DeviceChoice {
  verbs::DeviceOptions options;  // by which it has been opened
  std::shared_ptr<verbs::Device> device;
  std::vector<std::string> told{};  // what all members have told once it was open, by position in the meeting
};
/// What this member tells all others when it has opened that device.
using TellOfDevice = std::function<std::string(const verbs::Device&)>;

/// Collective. Opens the transport that the option names or, if it leaves that to nzcl, the first one that
/// suits the members. Transports within a host are tried between every two members, or of a pair of
/// transports between every two members of each host; if one of these trials fails, all members go on to the
/// next transport, and log why.
///
/// Communication steps:
///  1. Each member opens its device, and tells the others what `tell` returns, and for a transport within a
///     host what they need to try it, or why it cannot be opened.
///  2. For such a transport, each member tries the others, and tells them whom it cannot reach. If one cannot
///     be reached, both steps are repeated with the next transport.
///
/// A device that this member has opened already (`open`, or nullptr) is not opened again with the same
/// options.
///
/// Throws Error{unavailable, system} if there is no transport left, on all members where a trial has failed,
/// and otherwise on those that cannot open their device.
DeviceChoice choose_device(const Options& options, const engine::Membership& membership, int numa_node,
                           const DeviceChoice* open, const TellOfDevice& tell, bootstrap::Rounds& meeting,
                           bootstrap::Deadline deadline);

}  // namespace nzcl::comm
