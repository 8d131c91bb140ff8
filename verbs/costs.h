// What sending takes, measured on this process itself.
#pragma once

#include "verbs/transport.h"

namespace nzcl::verbs {

/// ns that copying a byte takes here, from what was just touched to what was not. Measured at the first call,
/// a few milliseconds; thread-safe.
double copy_byte_ns();

/// The costs of writing the memory of a process by process_vm_writev(2).
Costs measure_cross_memory_attach();

}  // namespace nzcl::verbs
