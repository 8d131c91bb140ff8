// When a slot's contribution is sent again: a wheel of timers, and the round trips from which the timeout
// follows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/switch/tuning.h"

namespace nzcl::engine::slot_pool {

using Time = std::chrono::nanoseconds;  // since any moment, the same for all calls

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
  static constexpr std::int64_t kSpokes = 8192;
  static_assert(kMostBackoff / kTick < kSpokes - 1);
  static std::int64_t tick_of(Time time) { return time / kTick; }
  struct Link {
    std::uint32_t before, after;
  };
  std::vector<Link> links_;  // of the items, then of the spokes, which are the ends of rings
  std::uint32_t first_spoke_ = 0;
  std::int64_t tick_ = 0;
};

/// Times as TCP smooths them (RFC 6298).
class SmoothedTime {
 public:
  void add(Time sample) {
    if (smoothed_ == Time{}) {
      smoothed_ = sample;
      deviation_ = sample / 2;
      return;
    }
    const Time error = sample > smoothed_ ? sample - smoothed_ : smoothed_ - sample;
    deviation_ += (error - deviation_) / 4;
    smoothed_ += (sample - smoothed_) / 8;
  }
  bool known() const { return smoothed_ != Time{}; }
  Time smoothed() const { return smoothed_; }
  /// Few samples take longer than this.
  Time most() const { return smoothed_ + std::max(4 * deviation_, smoothed_); }

 private:
  Time smoothed_{}, deviation_{};
};

/// The round trips of the network, and how long rounds take, which is longer if they wait for other ranks. A
/// rank need not ask about a round before the time that rounds usually take. But when many ranks have lost
/// something, that time contains the timeouts of others, which would grow with each other without end. So the
/// timeout is not longer than some round trips of the network.
///
/// A packet that has been sent more than once is measured only if it is known which copy was answered (Karn).
/// After a timeout that came too early, every packet would be repeated before its answer comes, and nothing
/// would ever be measured again. So the doubled timeout stays in force for all packets until one has been
/// measured.
class RoundTrips {
 public:
  /// How often to double the timeout of a packet that has already timed out `timeouts` times. It is at least
  /// the number of doublings in force for all packets.
  int doublings(int timeouts) const { return std::min(std::max(timeouts, doublings_), kMostDoublings); }
  /// A timeout that had been doubled `doublings` times has run out.
  void expired(int doublings) { doublings_ = std::max(doublings_, doublings + 1); }
  /// A packet was answered after the time `sample`, and the answer did not wait for other ranks.
  void measured(Time now, Time sample) {
    doublings_ = 0;
    // At most one sample is taken in each round trip. Otherwise the many samples of one round trip would
    // outweigh all earlier ones.
    if (network_.known() && now - measured_at_ < network_.smoothed()) return;
    measured_at_ = now;
    network_.add(sample);
  }
  /// A packet was answered after the time `sample`, but the answer may have waited for other ranks. So the
  /// round trip of the network is at most that long.
  void bounded(Time sample) {
    while (doublings_ > 0 && sample <= timeout(doublings_ - 1)) --doublings_;
    if (!network_.known() || sample < network_.smoothed()) network_.add(sample);
  }
  /// The result of a round came after this time.
  void round_took(Time sample) { rounds_.add(sample); }
  bool known() const { return network_.known(); }
  Time smoothed() const { return network_.smoothed(); }
  /// `growth`, `queueing`: of SendWindow. The queue of a rank's own packets may be longer than any round trip
  /// has shown yet, because losses kept it short. Waiting for it is no sign of a loss, so it is not doubled.
  Time timeout(int doublings, double growth = 1, Time queueing = Time{}) const {
    const auto measured =
        std::chrono::duration_cast<Time>(std::chrono::duration<double, Time::period>(first()) * growth);
    const Time least = std::min(kMostTimeout, queueing + network_.smoothed());
    return std::min(kMostBackoff, std::max(measured * (1 << doublings), least));
  }

 private:
  Time first() const {
    if (!network_.known()) return kMostTimeout / 5;
    const Time usual = std::min(rounds_.most(), kMostRoundTrips * network_.smoothed());
    return std::clamp(std::max(network_.most(), usual), kLeastTimeout, kMostTimeout);
  }

  SmoothedTime network_, rounds_;
  Time measured_at_{};  // the last round trip that was added
  int doublings_ = 0;
};

}  // namespace nzcl::engine::slot_pool
