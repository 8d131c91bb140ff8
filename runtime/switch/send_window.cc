#include "runtime/switch/send_window.h"

#include <algorithm>

namespace nzcl::engine::slot_pool {

SendWindow::SendWindow(std::uint32_t slots, std::uint32_t least)
    : entries_(slots + 1),
      end_(slots),
      least_(std::clamp(least, 1u, slots)),
      size_(least_),
      measured_size_(size_) {
  entries_[end_].before = entries_[end_].after = end_;
}

void SendWindow::sent(std::uint32_t slot, Time now, double share, double result_share, bool more) {
  left(slot);
  if (under_way_ == 0) delivered_at_ = now;  // nothing could have been delivered before
  Entry& e = entries_[slot];
  const std::uint32_t last = entries_[end_].before;
  const double length = std::max(share, result_share), packets = part_of_packet(length);
  // Sums of lengths are not exact, so they begin anew when nothing is under way. Sums of eighths are exact.
  if (under_way_ == 0) full_under_way_ = 0;
  under_way_ += packets;
  full_under_way_ += length;
  e = {.before = last,
       .after = end_,
       .under_way = true,
       .was_full = more && !open(),
       .packets = packets,
       .share = share,
       .length = length,
       .size = size_,
       .number = ++sent_,
       .delivered = delivered_,
       .full_delivered = full_delivered_,
       .delivered_at = delivered_at_};
  entries_[last].after = slot;
  entries_[end_].before = slot;
}

void SendWindow::left(std::uint32_t slot) {
  Entry& e = entries_[slot];
  if (!e.under_way) return;
  entries_[e.before].after = e.after;
  entries_[e.after].before = e.before;
  e.under_way = false;
  under_way_ -= e.packets;
  full_under_way_ -= e.length;
}

void SendWindow::answered(std::uint32_t slot, Time now, double share) {
  left(slot);
  delivered_ += entries_[slot].packets;
  full_delivered_ += std::max(entries_[slot].share, share);
  delivered_at_ = now;
}

Time SendWindow::queueing() const {
  if (packet_time_.least == kUnknown) return Time{};
  return Time(static_cast<std::int64_t>(full_under_way_ * packet_time_.least));
}

void SendWindow::measured(std::uint32_t slot, Time now, Time round_trip) {
  const Entry& e = entries_[slot];
  if (in_order(slot)) measured_size_ = e.size;
  round_trip_.add(now, round_trip);
  const auto ticks = [](Time t) { return static_cast<double>(std::max<std::int64_t>(1, t.count())); };
  const double delivered = delivered_ - e.delivered, full = full_delivered_ - e.full_delivered;
  const double took = ticks(now - e.delivered_at);
  if (full > 0) packet_time_.add(now, took / full);
  const double held = delivered * ticks(round_trip_.least) / took;
  resize(held * (has_queue(round_trip) ? kFull : kGrowing), e.was_full && in_order(slot));
}

/// A window grows at once. It shrinks over some round trips, and only if it was the window that kept packets
/// back.
void SendWindow::resize(double target, bool may_shrink) {
  target = std::clamp<double>(target, least_, end_);
  if (target > size_) {
    size_ = target;
  } else if (may_shrink) {
    size_ += (target - size_) / size_;
  }
}

/// Without a queue the window may double in a round trip, even if results wait for other ranks.
void SendWindow::told_to_wait(std::uint32_t slot, Time now, Time round_trip) {
  round_trip_.add(now, round_trip);
  if (entries_[slot].was_full && !has_queue(round_trip)) resize(size_ + 1, false);
}

void SendWindow::note_answer(std::uint32_t slot) {
  const std::uint64_t number = entries_[slot].number;
  if (number <= answered_[0]) return;
  answered_[0] = number;
  std::ranges::sort(answered_);
}

}  // namespace nzcl::engine::slot_pool
