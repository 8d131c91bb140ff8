#pragma once

#include <memory>
#include <string>

#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

/// Meeting of all processes of a PMIx namespace: what mpirun or srun started together. The launcher's own
/// channel is trusted. One at a time per process: PMIx fences carry no name, so this waits while another
/// thread's meeting of this kind goes on.
std::unique_ptr<Bootstrap> make_pmix_bootstrap(const std::string& session);

}  // namespace nzcl::bootstrap
