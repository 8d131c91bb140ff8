// Meeting through a file: member 0 writes there where it listens and a key made for this meeting. Who can
// read the file belongs to the job.
#pragma once

#include <memory>
#include <string>

#include "runtime/bootstrap/star.h"

namespace nzcl::bootstrap {

/// `path` must be on a file system that all members see. Member 0 replaces what an earlier job left there,
/// and removes the file when all have come.
std::unique_ptr<Bootstrap> make_file_bootstrap(StarSettings settings, const std::string& path);

/// For a launcher that starts all members on this host and tells them no place: a file in a directory that
/// only this user can use, named after `job`, or after the launcher's process if that is empty.
std::string job_file(const std::string& job, const std::string& session);

}  // namespace nzcl::bootstrap
