// Conversion of times of any unit to nanoseconds, without overflow.
#pragma once

#include <chrono>
#include <ratio>

namespace nzcl {

/// Returns `time` in nanoseconds. A time that is out of range becomes the longest or the shortest one that
/// nanoseconds can express, so that a wait for hours::max() has no end, instead of being over at once. NaN is
/// treated as no end.
template <class Rep, class Period>
constexpr std::chrono::nanoseconds saturated_nanoseconds(std::chrono::duration<Rep, Period> time) {
  using std::chrono::nanoseconds;
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  const double wanted = std::chrono::duration<double, std::nano>(time).count();
  if (!(wanted < kLimit)) return nanoseconds::max();
  if (wanted <= -kLimit) return nanoseconds::min();
  return std::chrono::duration_cast<nanoseconds>(time);
}

}  // namespace nzcl
