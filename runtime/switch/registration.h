// Where the rest of nzcl finds the switch exchange, or that it was built without it.
#pragma once

#include <memory>

#include "nzcl/options.h"
#include "runtime/exchange/wing.h"

namespace nzcl::engine {

/// Returns the wing that exchanges if the option `algorithm` has this value; nullptr if that is the business
/// of choose_algorithm(). Throws Error{unsupported} if this build has no such wing.
std::shared_ptr<const Wing> wing_of(Algorithm algorithm);

}  // namespace nzcl::engine
