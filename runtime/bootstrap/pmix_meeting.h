// Meetings through PMIx, the interface by which launchers such as mpirun and srun serve their processes.
#pragma once

#include <memory>
#include <string>

#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// A meeting of all processes of a PMIx namespace, which are those that one mpirun or srun started. The
/// launcher's own channel is trusted. A process takes part in one such meeting at a time, because PMIx fences
/// carry no name that would tell two meetings apart: this call waits until no other thread of the process is
/// in a PMIx meeting.
std::unique_ptr<Meeting> make_pmix_meeting(const std::string& session);

}  // namespace nzcl::bootstrap
