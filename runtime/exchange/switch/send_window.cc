#include "runtime/exchange/switch/send_window.h"

#include <algorithm>

namespace nzcl::engine::slot_pool {

SendWindow::SendWindow(std::uint32_t slots, std::uint32_t least)
    : entries_(slots + 1), end_(slots), least_(std::clamp(least, 1u, slots)), size_(least_) {
  entries_[end_].before = entries_[end_].after = end_;
}

void SendWindow::sent(std::uint32_t slot, Time now, bool opens, bool more) {
  left(slot);
  if (under_way_ == 0) delivered_at_ = now;  // nothing could have been delivered before
  Entry& e = entries_[slot];
  const std::uint32_t last = entries_[end_].before;
  const double packets = opens ? kOpening : 1;
  under_way_ += packets;  // sums of eighths are exact
  e = {.before = last,
       .after = end_,
       .under_way = true,
       .was_full = more && !open(),
       .packets = packets,
       .number = ++sent_,
       .delivered = delivered_,
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
}

void SendWindow::answered(std::uint32_t slot, Time now) {
  left(slot);
  delivered_ += entries_[slot].packets;
  delivered_at_ = now;
}

void SendWindow::measured(std::uint32_t slot, Time now, Time round_trip) {
  const Entry& e = entries_[slot];
  if (round_trip <= least_round_trip_ || now - least_at_ > kRemembered) {
    least_round_trip_ = round_trip;
    least_at_ = now;
  }
  const auto ticks = [](Time t) { return static_cast<double>(std::max<std::int64_t>(1, t.count())); };
  const double held = (delivered_ - e.delivered) * ticks(least_round_trip_) / ticks(now - e.delivered_at);
  const bool has_queue = ticks(round_trip) > kQueue * ticks(least_round_trip_);
  resize(held * (has_queue ? kFull : kGrowing), e.was_full);
}

/// A window grows at once. It shrinks only if it was what kept packets back, and within some round trips.
void SendWindow::resize(double target, bool was_full) {
  target = std::clamp<double>(target, least_, end_);
  if (target > size_) {
    size_ = target;
  } else if (was_full) {
    size_ += (target - size_) / size_;
  }
}

void SendWindow::note_answer(std::uint32_t slot) {
  const std::uint64_t number = entries_[slot].number;
  if (number <= answered_[0]) return;
  answered_[0] = number;
  std::ranges::sort(answered_);
}

}  // namespace nzcl::engine::slot_pool
