// Sees to it that a member may open the descriptors that it will need, before it needs them.
#pragma once

#include "runtime/bootstrap/meeting.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// Raises the soft limit of descriptors to the hard one if it may be too low for a meeting of that size.
/// Throws Error{system} that says how many are needed if the hard limit is too low as well.
void make_room_to_meet(const bootstrap::Meeting& meeting);

/// The same for the lanes and the control plane.
void make_room_for_lanes(const engine::Membership& membership, const verbs::Device& device);

}  // namespace nzcl::comm
