// What sending takes, measured on this process itself.
#pragma once

#include "verbs/transport.h"

namespace nzcl::verbs {

/// The costs of writing the memory of a process by process_vm_writev(2). Takes a few milliseconds.
Costs measure_cross_memory_attach();

}  // namespace nzcl::verbs
