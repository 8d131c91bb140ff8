// Measures what two cores of this host cost each other.
#pragma once

#include <string>

namespace nzcl::placement {

/// Two logical CPUs, by their numbers.
struct CpuPair {
  int first = 0, second = 1;
};

/// Returns how long a cache line takes to go to the other core and to come back, in nanoseconds: the median
/// of some batches. Takes a few milliseconds. Throws std::system_error if a thread cannot run on one of the
/// CPUs.
double round_trip_ns(const CpuPair& pair);

/// How messages are stored that the other core reads.
enum class Storing { cached, streamed };

/// Returns the GB/s at which the second core reads messages that the first one copies into a ring of buffers
/// meanwhile, as lent messages of nzcl are. Takes some 10 ms.
double message_gbs(const CpuPair& pair, Storing storing);

/// What was measured, as a sentence for people. Takes some 50 ms.
std::string describe_core_distance(const CpuPair& pair);

}  // namespace nzcl::placement
