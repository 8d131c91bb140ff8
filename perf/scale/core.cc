#include "perf/scale/core.h"

#include <algorithm>
#include <utility>

namespace perf::scale {

void Core::add(nzcl::engine::Lane& lane, std::function<void()> driven) {
  lanes_.push_back({.lane = &lane, .driven = std::move(driven)});
}

void Core::wake(std::size_t lane) {
  lanes_[lane].ready = true;
  if (at_ == nullptr) schedule();
}

void Core::schedule() {
  if (std::exchange(scheduled_, true)) return;
  timeline_.add(clock(), *this);
}

void Core::happen() {
  scheduled_ = false;
  clock_ = timeline_.now();
  for (Driven& each : lanes_) {
    if (!std::exchange(each.ready, false)) continue;
    at_ = &each;
    each.ready |= each.lane->drive();
    charge_bytes();
    charge(costs_.round);
    each.driven();
  }
  at_ = nullptr;
  if (std::ranges::any_of(lanes_, &Driven::ready)) schedule();
}

void Core::charge_bytes() {
  if (at_ == nullptr) return;
  const nzcl::engine::LaneStatistics& counted = at_->lane->statistics();
  const std::uint64_t copied = counted.bytes_copied.load(std::memory_order_relaxed);
  const std::uint64_t read = counted.bytes_received.load(std::memory_order_relaxed);
  charge(coarseness_ * (static_cast<double>(copied - at_->copied) * costs_.copied_byte +
                        static_cast<double>(read - at_->read) * costs_.read_byte));
  at_->copied = copied;
  at_->read = read;
}

}  // namespace perf::scale
