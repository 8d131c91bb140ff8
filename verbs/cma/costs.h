// The cost of process_vm_writev(2), measured on this process itself.
#pragma once

#include "verbs/transport.h"

namespace nzcl::verbs::cma {

/// Measures process_vm_writev in turn with memcpy, which takes a few milliseconds.
Costs measure_costs();

}  // namespace nzcl::verbs::cma
