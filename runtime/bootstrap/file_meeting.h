// A meeting through a file, into which member 0 writes where it listens and a key for this meeting. Only this
// user can read the file, and whoever can read it counts as a member of the job. A file that is not this
// user's own is refused, because its writer would be taken for member 0.
#pragma once

#include <memory>
#include <string>

#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// `path` must be on a file system that all members see. Member 0 replaces a file that an earlier job has
/// left there, and removes its own when all members have come. If `one_host`, all members are in one network
/// namespace, and member 0 listens on its loopback address only; otherwise on every interface.
std::unique_ptr<Meeting> make_file_meeting(MeetingSettings settings, const std::string& path,
                                           bool one_host = false);

/// The path of a file for a launcher that starts all members on this host without telling them where to meet.
/// The file lies in a folder that only this user can use. Its name is made from the session and from `job`,
/// or from the launcher's process if `job` is empty.
std::string job_file(const std::string& job, const std::string& session);

}  // namespace nzcl::bootstrap
