// When a slot's contribution is sent again: a wheel of timers, and the round trips from which the timeout
// follows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace nzcl::engine::slot_pool {

using Time = std::chrono::nanoseconds;  // since any moment, the same for all calls

inline constexpr Time kTick = std::chrono::microseconds(50);
inline constexpr Time kLeastTimeout = std::chrono::microseconds(250);
inline constexpr Time kMostTimeout = std::chrono::milliseconds(50);  // before it is doubled
inline constexpr Time kMostBackoff = std::chrono::milliseconds(200);

/// One timer for each of `count` items. Setting, clearing and expiring take constant time. Not thread-safe.
class TimerWheel {
 public:
  explicit TimerWheel(std::size_t count) : links_(count + kSpokes) {
    for (std::uint32_t i = 0; i < links_.size(); ++i) links_[i] = {i, i};
    first_spoke_ = static_cast<std::uint32_t>(count);
  }

  void set(std::uint32_t item, Time now, Time after) {
    clear(item);
    // One tick more, because a part of the current one is over.
    const std::int64_t ticks = std::clamp<std::int64_t>(after / kTick + 1, 1, kSpokes - 1);
    const auto spoke = first_spoke_ + static_cast<std::uint32_t>((tick_of(now) + ticks) % kSpokes);
    links_[item] = {links_[spoke].before, spoke};
    links_[links_[spoke].before].after = item;
    links_[spoke].before = item;
  }
  void clear(std::uint32_t item) {
    links_[links_[item].before].after = links_[item].after;
    links_[links_[item].after].before = links_[item].before;
    links_[item] = {item, item};
  }
  /// Calls expired(item) for every timer whose time has come. It may set timers.
  template <typename Expired>
  void advance(Time now, Expired expired) {
    const std::int64_t target = tick_of(now);
    if (target - tick_ > kSpokes) tick_ = target - kSpokes;  // one turn of the wheel meets every timer
    while (tick_ < target) {
      ++tick_;
      const auto spoke = first_spoke_ + static_cast<std::uint32_t>(tick_ % kSpokes);
      while (links_[spoke].after != spoke) {
        const std::uint32_t item = links_[spoke].after;
        clear(item);
        expired(item);
      }
    }
  }

 private:
  static constexpr std::int64_t kSpokes = 4096;
  static_assert(kMostBackoff / kTick < kSpokes - 1);
  static std::int64_t tick_of(Time time) { return time / kTick; }
  struct Link {
    std::uint32_t before, after;
  };
  std::vector<Link> links_;  // of the items, then of the spokes, which are the ends of rings
  std::uint32_t first_spoke_ = 0;
  std::int64_t tick_ = 0;
};

/// Round trips as TCP measures them (RFC 6298). What has been sent more than once is not measured, because it
/// is not known which copy was answered. So after a timeout that came too early nothing would ever be
/// measured again, if the doubled timeout did not stay in force, for all that is sent, until something has
/// been.
class RoundTrips {
 public:
  /// How often the timeout of what has waited for so many timeouts before is doubled.
  int doublings(int timeouts) const { return std::min(std::max(timeouts, doublings_), kMostDoublings); }
  /// A timeout that was doubled so often is over.
  void expired(int doublings) { doublings_ = std::max(doublings_, doublings + 1); }
  void measured(Time sample) {
    doublings_ = 0;
    if (smoothed_ == Time{}) {
      smoothed_ = sample;
      deviation_ = sample / 2;
      return;
    }
    const Time error = sample > smoothed_ ? sample - smoothed_ : smoothed_ - sample;
    deviation_ += (error - deviation_) / 4;
    smoothed_ += (sample - smoothed_) / 8;
  }
  Time smoothed() const { return smoothed_; }
  Time timeout(int doublings) const {
    const Time first = smoothed_ == Time{} ? kMostTimeout / 5
                                           : std::clamp(smoothed_ + std::max(4 * deviation_, smoothed_),
                                                        kLeastTimeout, kMostTimeout);
    return std::min(kMostBackoff, first * (1 << doublings));
  }

 private:
  static constexpr int kMostDoublings = 8;
  Time smoothed_{}, deviation_{};
  int doublings_ = 0;
};

}  // namespace nzcl::engine::slot_pool
