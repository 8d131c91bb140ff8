// The meeting of the members of an attempt to shrink a communicator.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/shrinking.h"

namespace nzcl::bootstrap {

/// The first member of the attempt tells the others where it listens, over the control plane of the
/// communicator that they shrink, whose members have proved its secret. Ends when the attempt does.
/// `shrinking` must outlive it.
std::unique_ptr<Meeting> make_shrink_meeting(MeetingSettings settings, Shrinking& shrinking,
                                             std::uint64_t attempt, bool one_host);

}  // namespace nzcl::bootstrap
