// The meeting of the members of an attempt to make a communicator in the place of theirs.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/regrouping.h"

namespace nzcl::bootstrap {

/// The first member of the attempt tells the others where it listens, over the control plane of the
/// communicator that they replace, whose members have proved its secret. Ends when the attempt does.
/// `regrouping` must outlive it.
std::unique_ptr<Meeting> make_regroup_meeting(MeetingSettings settings, Regrouping& regrouping,
                                              std::uint64_t attempt, bool one_host);

/// The same, but others come as well. They know where `open`, a meeting of the first member, listens, and
/// with which secret. On all other members of the attempt, `open` is nullptr.
std::unique_ptr<Meeting> make_regroup_meeting(MeetingSettings settings, Regrouping& regrouping,
                                              std::uint64_t attempt, std::unique_ptr<Meeting> open);

}  // namespace nzcl::bootstrap
