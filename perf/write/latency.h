#pragma once

#include <cstdint>

#include "perf/write/session.h"

namespace perf::write {

struct LatencyResult {  // microseconds for one way, which is half of a round trip
  std::uint32_t size = 0;
  std::uint64_t iterations = 0;
  double min = 0, max = 0, typical = 0, average = 0, stdev = 0, p99 = 0, p999 = 0;
};

/// Both sides call it and write to each other in turn. Without --with_imm a side sees the other's write by
/// its last byte, as in ib_write_lat; with it, by the arrival. The first twentieth of the rounds does not
/// count.
LatencyResult measure_latency(Session& session, std::uint32_t size);

}  // namespace perf::write
