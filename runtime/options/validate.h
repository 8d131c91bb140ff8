// The check of options that a caller has set in code.
#pragma once

#include "nzcl/options.h"

namespace nzcl {

/// Throws Error{invalid_argument} with the name of the first option that is out of its range.
void validate(const Options& options);

}  // namespace nzcl
