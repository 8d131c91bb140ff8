// Sees to it that a member may open the descriptors that it will need, before it needs them.
#pragma once

#include <cstddef>

#include "runtime/bootstrap/meeting.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// Raises the soft limit of descriptors to the hard one if it may be too low for a meeting of that size.
/// Throws Error{system} that says how many are needed if the hard limit is too low as well.
void make_room_to_meet(const bootstrap::Meeting& meeting);

/// The same for the lanes, once the members have met. If the limit allows fewer than for all peers, but
/// enough to go on with, the log says so. Returns EndpointOptions::peer_descriptors of each lane.
std::size_t make_room_for_lanes(const engine::Membership& membership, const verbs::Device& device);

/// What the endpoints of some lanes take.
struct DescriptorNeed {
  std::size_t least = 0;  // without these there is no communicator
  std::size_t all = 0;    // once every peer has been written to
  /// How many of these are for peers that can take turns, in each lane.
  std::size_t turns = 0, least_turns = 0;
};
DescriptorNeed descriptors_of_lanes(const engine::Membership& membership, const verbs::Device& device);

/// EndpointOptions::peer_descriptors of each of `lanes` lanes where so many descriptors are free. If these
/// are not enough for all peers, half of what is free is left to the program and to further communicators.
/// Precondition: need.least <= free.
std::size_t descriptors_for_turns(const DescriptorNeed& need, std::size_t lanes, std::size_t free);

}  // namespace nzcl::comm
