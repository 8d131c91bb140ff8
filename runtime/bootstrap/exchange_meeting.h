// Meetings of members that can already exchange bytes: through the launcher, through the caller's allgather,
// between threads, or over the control plane of another communicator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// Collective: every member calls it as often as the others. Returns the bytes of all members, ordered by
/// their positions. Throws Error{timeout} at the deadline.
using Allgather = std::function<std::vector<std::string>(std::string_view mine, Deadline deadline)>;

/// A meeting in two rounds of an allgather, whose channel must be trusted: all tell on which host they are,
/// so that member 0 listens for other hosts only if there are some, and then member 0 tells where it listens,
/// and a secret for this meeting. A member that gives up takes part in the next round and says why.
///
/// `ended_by`, if given, is Meeting::ended_by(): a member that dies on its way to the hub is missed by
/// whoever carries the bytes, and not by the meeting.
std::unique_ptr<Meeting> make_exchange_meeting(MeetingSettings settings, Allgather allgather,
                                               std::function<std::optional<Failure>()> ended_by = {});

}  // namespace nzcl::bootstrap
