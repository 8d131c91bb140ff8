// The first part of joining a communicator: the members introduce themselves, and each plans its lanes and
// threads from what all have said.
#pragma once

#include <memory>
#include <string>

#include "nzcl/options.h"
#include "runtime/bootstrap/control.h"
#include "runtime/exchange/wing.h"
#include "runtime/placement/plan.h"
#include "runtime/placement/topology.h"
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
/// until take_whereabouts() has filled them in.
struct Introduction {
  Options options;  // the options in effect, with rank, world_size and lanes filled in
  Options asked;    // those of the job's first communicator, as its caller gave them
  engine::Membership membership;
  placement::Placement placement;
  std::shared_ptr<const engine::Wing> wing{};  // exchanges all operations; nullptr: no wing does
};

/// What this member says of itself when it comes.
std::string introduction_text(const Options& options, const Identity& identity,
                              const placement::Topology& topology);
/// Collective: all come to the meeting, and are told the introductions of all. Throws what
/// ControlPlane::join() throws.
std::unique_ptr<bootstrap::ControlPlane> meet(const Options& options, bootstrap::Meeting& meeting,
                                              const Identity& identity, const std::string& introduction,
                                              bootstrap::Deadline deadline);

/// What follows from the introductions of all, to whom the one at `position` belongs. Throws
/// Error{invalid_argument, mismatch, unsupported}.
Introduction introduce(Options options, const bootstrap::ControlPlane& control, int position,
                       const Identity& identity, const placement::Topology& topology);
/// Who the members are, for their control plane.
bootstrap::ControlPlane::Settings settings_of(const engine::Membership& membership);

}  // namespace nzcl::comm
