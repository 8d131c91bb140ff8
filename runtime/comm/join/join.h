// The first part of joining a communicator: the members introduce themselves, and each plans its lanes and
// threads from what all have said.
#pragma once

#include <memory>

#include "nzcl/options.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/exchange/wing.h"
#include "runtime/placement/plan.h"
#include "runtime/plan/membership.h"

namespace nzcl::comm {

/// What this process is to be in the communicator.
struct Identity {
  bootstrap::Role role = bootstrap::Role::worker;
  int index = -1;  // rank, or number of the dedicated aggregator; -1: from the order of the meeting
  /// Given by a program that has made it from its command line. nullptr: what the option `algorithm` says.
  std::shared_ptr<const engine::Wing> wing{};
};

/// What a member knows when all have introduced themselves. The membership lacks the members' nodes and links
/// until gather_nodes_and_links() has filled them in.
struct Introduction {
  Options options;  // the options in effect, with rank, world_size and lanes filled in
  Options asked;    // those of the job's first communicator, as its caller gave them
  engine::Membership membership;
  placement::Placement placement;
  std::shared_ptr<const engine::Wing> wing{};  // exchanges all operations; nullptr: no wing does
};

/// Collective: all come to the meeting. Throws what ControlPlane::join() throws.
std::unique_ptr<bootstrap::ControlPlane> meet(const Options& options, bootstrap::Meeting& meeting,
                                              const Identity& identity, bootstrap::Deadline deadline);

/// Collective. `rounds` are of all members of the control plane. Throws Error{invalid_argument, mismatch,
/// unsupported, timeout}.
Introduction introduce(Options options, bootstrap::ControlPlane& control, bootstrap::Rounds& rounds,
                       Identity identity, bootstrap::Deadline deadline);
/// Collective: the control plane learns who its members are.
void settle(bootstrap::ControlPlane& control, const engine::Membership& membership,
            bootstrap::Deadline deadline);

}  // namespace nzcl::comm
