// What process_vm_writev(2) takes, measured on this process itself.
#pragma once

#include "verbs/transport.h"

namespace nzcl::verbs::cma {

/// In turn with memcpy; takes a few milliseconds.
Costs measure_costs();

}  // namespace nzcl::verbs::cma
