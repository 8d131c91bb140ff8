// What the C API needs beside the C++ API.
#pragma once

#include "nzcl/communicator.h"

namespace nzcl::comm {

/// Takes the place, in the order of operations, of a call that was refused before it could say anything of
/// its operation. Without it the next operation of this rank would meet the other ranks' present one. Throws
/// Error if the communicator has failed or is closed.
void refuse_operation(Communicator& communicator, const Error& refusal);

}  // namespace nzcl::comm
