// Names and cores of the engine's threads; both act on the calling thread.
#pragma once

namespace nzcl::placement {

/// At most 15 characters count; seen in top -H and gdb.
void name_thread(const char* name);
/// Where this is not allowed the thread runs anywhere, and the log says so once per call. -1: no pinning.
void pin_thread(int cpu);

}  // namespace nzcl::placement
