#pragma once

#include "nzcl/options.h"

namespace nzcl {

/// Throws Error{invalid_argument} naming the first option that is out of its range.
void validate(const Options& options);

}  // namespace nzcl
