// Rounding to 16-bit floats and back, in plain arithmetic.
#pragma once

#include "nzcl/types.h"

namespace perf {

/// To float16 or bfloat16 and back, to nearest even. `v` is finite, or comes back as it is.
float through(nzcl::DataType type, float v);

}  // namespace perf
