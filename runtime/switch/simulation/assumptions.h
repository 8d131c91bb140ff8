// What the simulation takes for granted, for --help. README.md has the same sentences; a test compares them.
#pragma once

namespace nzcl::simulation {

inline constexpr const char* kAssumptions[] = {
    "Every rank has one link to the switch, with the same rate and delay both ways.",
    "The switch adds and copies at the full rate of all its links, and takes no time for it.",
    "Ranks take no time to make, check and add up packets: what is shown is the network's part.",
    "All ranks begin at the same time.",
    "Queues hold whatever comes, so packets are lost by the given probability alone, each by itself, in "
    "either "
    "direction.",
    "A packet takes 66 bytes on the wire beside what nzcl puts into it: Ethernet with its gap, IPv4 and UDP.",
    "An eighth of the tensor is summed before the clock starts, so that windows and round trips are known.",
};

}  // namespace nzcl::simulation
