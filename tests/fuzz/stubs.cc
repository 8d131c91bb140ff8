// Stands in for functions that the fuzzed files call, but whose own files clang 14 cannot compile (see
// fuzzed_sources.cmake), or that no fuzzed configuration reaches.
#include "runtime/placement/plan.h"

namespace nzcl {

int placement::auto_lanes(int own_cores) { return own_cores < 2 ? 1 : 2; }

}  // namespace nzcl
