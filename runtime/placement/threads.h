// Gives engine threads their names and cores. Both functions act on the calling thread.
#pragma once

#include <string_view>

namespace nzcl::placement {

/// Sets the name that top -H and gdb show. Only its first 15 characters count.
void name_thread(const char* name);
/// Pins the thread to a hardware thread, or does nothing if `cpu` is -1. If the system does not allow it, a
/// warning is logged in the name of `member`, and the thread may run anywhere.
void pin_thread(int cpu, std::string_view member);

}  // namespace nzcl::placement
