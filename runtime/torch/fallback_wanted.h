// Whether Gloo does what nzcl does not do itself.
#pragma once

#include "nzcl/export.h"

namespace nzcl_torch {

/// The variable that says so.
inline constexpr const char* kFallbackVariable = "NZCL_TORCH_FALLBACK";

/// True if the variable is 1 or not set. Throws nzcl::Error for a value that is neither 0 nor 1.
NZCL_API bool fallback_wanted();

}  // namespace nzcl_torch
