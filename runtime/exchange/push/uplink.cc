#include "runtime/exchange/push/uplink.h"

#include <algorithm>

namespace nzcl::engine {

std::uint64_t Uplink::submit(Operation& operation, std::uint64_t owned) {
  if (owned == 0) return 0;
  const std::uint64_t first = operation.layout.slices() == 1 ? 0 : operation.layout.owned_slice(owner_, 0);
  pending_[(first_pending_ + pending_count_++) % kMaxOperations] = {&operation, 0, owned, first};
  return owned;
}

bool Uplink::may_start(std::uint64_t ahead_bytes) const {
  if (!has_next() || started_ - sending_ > kBitmapsAhead) return false;
  const std::uint64_t incomplete = started_ - oldest_;
  if (incomplete >= window_) return false;
  return ahead_bytes == 0 || incomplete < kLeastWindow || weight_ < ahead_bytes;
}

Transfer& Uplink::start() {
  Pending& pending = pending_[first_pending_];
  Operation& op = *pending.operation;
  const std::uint64_t slice = pending.slice;
  const std::uint64_t sequence = started_++;
  Transfer& t = at(sequence);
  t = {};
  t.active = true;
  t.up = Contribution(op, slice, sequence);
  t.weight = std::min(op.layout.slice_bytes(), kCacheWeight * t.up.stream_bytes);
  weight_ += t.weight;
  if (++pending.next == pending.owned) {
    first_pending_ = (first_pending_ + 1) % kMaxOperations;
    --pending_count_;
  } else {
    pending.slice = op.layout.owned_slice(owner_, pending.next);
  }
  return t;
}

Transfer* Uplink::find(std::uint64_t sequence) {
  if (sequence < oldest_ || sequence >= started_) return nullptr;
  Transfer& t = at(sequence);
  return t.active ? &t : nullptr;
}

Transfer* Uplink::find_short(std::uint16_t sequence) {
  // The window is far smaller than 2^16, so at most one sequence under way has these low bits.
  const auto ahead = static_cast<std::uint16_t>(sequence - static_cast<std::uint16_t>(oldest_));
  return find(oldest_ + ahead);
}

void Uplink::skip_sent() {
  while (sending_ < started_ && at(sending_).up.sent()) ++sending_;
}

void Uplink::finish(Transfer& transfer) {
  transfer.active = false;
  weight_ -= transfer.weight;
  while (oldest_ < started_ && !at(oldest_).active) ++oldest_;
}

}  // namespace nzcl::engine
