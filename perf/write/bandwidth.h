#pragma once

#include <cstdint>

#include "perf/write/session.h"

namespace perf::write {

struct BandwidthResult {
  std::uint32_t size = 0;
  std::uint64_t iterations = 0;  // of one direction
  double peak = 0, average = 0;  // bytes per second; with -b the sum of both directions
  double messages = 0;           // per second
};

/// Both sides call it. The client writes (with -b both sides do), with at most --tx-depth writes in flight,
/// and the clock stops when the other side has said that the last write has landed. The peak is the best of
/// all windows of four times --tx-depth writes. Throws nzcl::Error if the peer is lost, or if the bytes that
/// landed are not those that were sent.
BandwidthResult measure_bandwidth(Session& session, std::uint32_t size);

}  // namespace perf::write
