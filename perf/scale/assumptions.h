// What the simulation takes for granted, for --help. README.md has the same sentences; a test compares them.
#pragma once

namespace perf::scale {

inline constexpr const char* kAssumptions[] = {
    "Each host has one link with the same rate both ways, and all its ranks share it.",
    "A message takes a link in one piece, behind those whose first byte came before its own; a switch passes "
    "its bytes on as they come.",
    "Queues hold whatever comes, and nothing is lost.",
    "Within a host a message takes its delay and the time of the cores that copy it; memory has room for all "
    "of them at once.",
    "Each lane has a core, or with --one-core all lanes of a rank share one. A round of a lane, each end of "
    "a "
    "message, each contribution that is gathered, and each byte that is copied or read take a fixed time: "
    "that by which algorithms are chosen.",
    "A network card moves bytes by itself, and the kernel's TCP takes the core's time for them.",
    "Other threads look for what is not zero, and are always ahead.",
    "All ranks begin at the same time, with connections made, and nothing else runs.",
    "From the end of a hierarchy's step until the next one begins, a thread has to be woken.",
    "With more ranks than --meet a hierarchy has no meeting, which takes place beside the sums.",
    "With --coarse each byte of values stands for several, on the wire and in the time of cores.",
};

}  // namespace perf::scale
