// Meetings of members that can already exchange bytes: through the launcher, through the caller's allgather,
// between threads, or over the control plane of another communicator.
#pragma once

#include <functional>
#include <memory>
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
std::unique_ptr<Meeting> make_exchange_meeting(MeetingSettings settings, Allgather allgather);

}  // namespace nzcl::bootstrap
