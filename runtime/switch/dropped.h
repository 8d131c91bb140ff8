// What came to a lane's datagram port and was dropped, because nobody may be believed who can reach it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/channel/lane_context.h"

namespace nzcl::engine::slot_pool {

/// Numbers of packets.
struct Dropped {
  std::uint64_t unknown = 0;  // from addresses that are no member's
  std::uint64_t refused = 0;  // from members' addresses, but forged, changed on the way, or without sense
  std::uint64_t past = 0;     // of ranks, but past the interfaces at which a program in the kernel sums
};

/// Who logs, at the beginning of a line: "rank 2: lane 0".
std::string name_of_lane(const LaneContext& context);

/// One line for the log, without the name; empty if nothing was dropped.
std::string dropped_text(const Dropped& dropped);

/// Logs that line, if there is one. Exchanges call it once, when they end.
void log_dropped(const LaneContext& context, const Dropped& dropped);

}  // namespace nzcl::engine::slot_pool
