// How many packets a rank has under way, and which of them do not come back.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/switch/timers.h"
#include "runtime/switch/tuning.h"

namespace nzcl::engine::slot_pool {

/// A packet is under way from when it is sent until its result comes, its slot is told to wait for others,
/// its time is over, or results of later ones show that it was lost. So no slot keeps its place for ever,
/// and ranks that wait for each other's slots come to them.
///
/// The window holds what arrives in the least round trip, and some more, so that a link is full and a queue
/// is short. It never goes below `least` packets, which need no measurement. It is counted in packets that
/// are full of values; a shorter packet counts as a part of one. Not thread-safe; allocates only when it is
/// made.
class SendWindow {
 public:
  SendWindow(std::uint32_t slots, std::uint32_t least);

  bool open() const { return under_way_ < size_; }
  /// In full packets.
  double size() const { return size_; }
  /// How many times as much may be under way now as when the packet was sent whose round trip was measured
  /// last. If a queue forms, round trips become that many times longer before one of them has been measured.
  double growth() const { return std::max(1.0, size_ / measured_size_); }

  /// How long a link that is as fast as the fastest one seen takes to deliver what is under way now. A result
  /// cannot be expected before that.
  Time queueing() const;

  /// What a packet counts for in the window if it takes this share (0 to 1) of a full one: as many eighths,
  /// at least one. A packet without values is a smaller part of the bytes, but takes a place in buffers as
  /// well.
  static double part_of_packet(double share) { return std::ceil(std::clamp(share, kLeastPart, 1.0) * 8) / 8; }

  /// The slot's packet is sent. `share`: what it takes of a full packet. `result_share`: what its result is
  /// expected to take. `more`: others wait to be sent.
  void sent(std::uint32_t slot, Time now, double share, double result_share, bool more);
  /// The slot's packet is not under way any more.
  void left(std::uint32_t slot);
  /// The slot's packet has been answered after this time, but not with the result.
  void told_to_wait(std::uint32_t slot, Time now, Time round_trip);
  /// The slot's result has come, and takes this share of a full packet.
  void answered(std::uint32_t slot, Time now, double share);
  /// The number of the slot's last packet, counted over all packets in the order of sending.
  std::uint64_t number(std::uint32_t slot) const { return entries_[slot].number; }
  /// Whether no packet that was sent later has been answered before it.
  bool in_order(std::uint32_t slot) const { return entries_[slot].number > answered_.back(); }
  /// Notes that the slot's packet has been answered. It was sent only once, so packets that were sent before
  /// it should have been answered as well.
  void note_answer(std::uint32_t slot);
  /// Notes how long the slot's packet took. Called after answered().
  void measured(std::uint32_t slot, Time now, Time round_trip);
  /// Calls lost(slot) for each slot whose packet must have been lost, because kLaterPackets packets that were
  /// sent later have been answered.
  template <typename Lost>
  void find_lost(Lost lost) {
    while (entries_[end_].after != end_ && entries_[entries_[end_].after].number < answered_[0]) {
      const std::uint32_t slot = entries_[end_].after;
      left(slot);
      lost(slot);
    }
  }

 private:
  template <typename T>
  struct RecentLeast {
    T least;  // at first what is longer than anything measured
    Time at{};
    void add(Time now, T measured) {
      if (measured > least && now - at <= kRemembered) return;
      least = measured;
      at = now;
    }
  };

  struct Entry {
    std::uint32_t before = 0, after = 0;  // in the order of sending, of those under way
    bool under_way = false;
    bool was_full = false;      // the window, when it was sent
    double packets = 0;         // what it counts for in the window
    double share = 0;           // its length, as a share of a full packet
    double length = 0;          // the same of the packet or its result, whichever is longer
    double size = 0;            // the window's size when it was sent
    std::uint64_t number = 0;   // its number among all packets, in the order of sending
    double delivered = 0;       // what had been delivered when it was sent, as the window counts packets
    double full_delivered = 0;  // the same by length, in full packets
    Time delivered_at{};        // when the last of these was delivered
  };

  bool has_queue(Time round_trip) const {
    return std::chrono::duration<double>(round_trip) > kQueue * round_trip_.least;
  }
  void resize(double target, bool may_shrink);

  std::vector<Entry> entries_;  // of the slots, then the end of the ring
  const std::uint32_t end_, least_;
  double size_, measured_size_, under_way_ = 0, delivered_ = 0;  // packets, as the window counts them
  // As many full packets as take as long on a link. Headers are eighths in the window, but much shorter.
  double full_under_way_ = 0, full_delivered_ = 0;
  std::uint64_t sent_ = 0;
  Time delivered_at_{};
  RecentLeast<Time> round_trip_{Time::max()};
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  RecentLeast<double> packet_time_{kUnknown};  // in ticks of Time, from one delivered packet to the next
  std::array<std::uint64_t, kLaterPackets> answered_{};  // the latest numbers, in rising order
};

}  // namespace nzcl::engine::slot_pool
