// Compressed allreduces with states that live from step to step, against a plain sum of what states alike
// send.
#pragma once

#include <cstdint>
#include <string>

#include "nzcl/communicator.h"

namespace nzcl::stress {

/// Collective; `seed` is the same on all ranks. Returns what is wrong, or an empty string.
std::string check_compressed(Communicator& communicator, std::uint64_t seed);

}  // namespace nzcl::stress
