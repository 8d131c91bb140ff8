// A meeting through a file, into which member 0 writes where it listens and a key for this meeting. Whoever
// can read the file counts as a member of the job.
#pragma once

#include <memory>
#include <string>

#include "runtime/bootstrap/star.h"

namespace nzcl::bootstrap {

/// `path` must be on a file system that all members see. Member 0 replaces a file that an earlier job has
/// left there, and removes its own when all members have come.
std::unique_ptr<Bootstrap> make_file_bootstrap(StarSettings settings, const std::string& path);

/// The path of a file for a launcher that starts all members on this host without telling them where to meet.
/// The file lies in a folder that only this user can use. Its name is made from the session and from `job`,
/// or from the launcher's process if `job` is empty.
std::string job_file(const std::string& job, const std::string& session);

}  // namespace nzcl::bootstrap
