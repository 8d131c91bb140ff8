// Deadlines from the times that callers and options give.
#pragma once

#include <chrono>

namespace nzcl {

/// The moment that lies `time` after now, or the clock's last moment if `time` is longer than the clock can
/// count. Every deadline that comes from a caller or an option is made here, so that none can overflow into
/// the past.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::nanoseconds time) {
  using Moment = std::chrono::steady_clock::time_point;
  const Moment now = std::chrono::steady_clock::now();
  return time > Moment::max() - now ? Moment::max() : now + time;
}

}  // namespace nzcl
