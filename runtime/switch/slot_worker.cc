#include "runtime/switch/slot_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace nzcl::engine::slot_pool {

SlotWorker::SlotWorker(const Pool& pool, int rank, std::size_t most_tensors)
    : pool_(pool),
      rank_(rank),
      slots_(pool.slots),
      tensors_(most_tensors),
      due_(pool.slots),
      window_(pool.slots, pool.window),
      timers_(pool.slots) {}

void SlotWorker::submit(Tensor& tensor) {
  assert(tensors_begun_ - tensors_ended_ < tensors_.size());
  const std::uint64_t number = tensors_begun_++;
  tensors_[number % tensors_.size()] = {&tensor, pool_.slots};
  for (std::uint32_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].state == State::idle && slots_[s].tensor == number) begin(s);
  }
}

/// Begins the slot's tensor, if it has been submitted. Slots that the tensor does not use leave it out.
void SlotWorker::begin(std::uint32_t s) {
  Slot& slot = slots_[s];
  slot.state = State::idle;
  while (slot.tensor != tensors_begun_) {
    const std::uint32_t pieces = tensor_of(slot).pieces();
    if (s == 0 || s < std::min(pieces, slots_used(pieces, pool_.slots))) {
      slot.piece = kNoPiece;
      slot.mine = false;
      slot.exponent = 0;
      return look(s);
    }
    leave_tensor(s);
  }
}

/// Finds the piece that this rank holds next, after which the slot's packet is due.
void SlotWorker::look(std::uint32_t s) {
  Slot& slot = slots_[s];
  const bool was_looking = slot.state == State::looking;
  Tensor& tensor = tensor_of(slot);
  const std::uint32_t step = slots_used(tensor.pieces(), pool_.slots);
  const std::uint32_t from = slot.piece == kNoPiece ? s : slot.piece + step;
  if (from >= tensor.pieces()) {
    slot.ahead = {};
  } else if (!tensor.look_ahead(from, step, slot.ahead)) {
    slot.state = State::looking;
    looking_ += was_looking ? 0 : 1;
    return;
  }
  looking_ -= was_looking ? 1 : 0;
  slot.times = 0;
  make_due(s);
}

void SlotWorker::make_due(std::uint32_t s) {
  slots_[s].state = State::due;
  due_[(due_first_ + due_count_++) % due_.size()] = s;
}

void SlotWorker::make_due_first(std::uint32_t s) {
  slots_[s].state = State::due;
  due_first_ = (due_first_ + due_.size() - 1) % due_.size();
  due_[due_first_] = s;
  ++due_count_;
}

void SlotWorker::cancel_due(std::uint32_t s) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < due_count_; ++i) {
    const std::uint32_t other = due_[(due_first_ + i) % due_.size()];
    if (other != s) due_[(due_first_ + kept++) % due_.size()] = other;
  }
  due_count_ = kept;
}

void SlotWorker::advance(Time now) {
  timers_.advance(now, [this](std::uint32_t s) { expire(s); });
  for (std::uint32_t s = 0; looking_ > 0 && s < slots_.size(); ++s) {
    if (slots_[s].state == State::looking) look(s);
  }
}

void SlotWorker::expire(std::uint32_t s) {
  Slot& slot = slots_[s];
  if (slot.state != State::waiting) return;
  const bool may_wait_for_others = slot.told_to_wait || (slot.times == 1 && round_trips_.known());
  if (!may_wait_for_others) round_trips_.expired(slot.doublings);
  ++(slot.told_to_wait ? slot.waits : slot.timeouts);
  slot.asks = may_ask(slot);
  window_.left(s);
  pool_.zeros ? make_due(s) : make_due_first(s);
}

Header SlotWorker::header_of(std::uint32_t s) {
  const Slot& slot = slots_[s];
  Header h;
  h.rank = static_cast<std::uint16_t>(rank_);
  h.slot = static_cast<std::uint16_t>(s);
  h.round = slot.round;
  h.piece = slot.piece;
  h.exponent = slot.exponent;
  h.next = slot.ahead.piece;
  h.next_exponent = slot.ahead.exponent;
  h.shape = tensor_of(slot).shape();
  return h;
}

/// Returns how many bytes the values take.
std::size_t SlotWorker::write_values(std::uint32_t s, Header& h, std::span<std::byte> to) {
  const Slot& slot = slots_[s];
  if (slot.mine) {
    const std::span values(reinterpret_cast<std::int32_t*>(to.data()), pool_.piece_elements);
    const Filled filled = tensor_of(slot).fill(slot.piece, slot.exponent, values);
    h.flags = static_cast<std::uint8_t>(kHasValues | (filled.clamped ? kClamped : 0));
    h.blocks = filled.blocks;
    return filled.values * sizeof(std::int32_t);
  }
  if (!pool_.zeros || slot.piece == kNoPiece) return 0;
  h.flags = kHasValues;
  const std::size_t bytes = tensor_of(slot).values(slot.piece, 0) * sizeof(std::int32_t);
  std::memset(to.data(), 0, bytes);
  return bytes;
}

std::size_t SlotWorker::next_packet(std::span<std::byte> to, Time now) {
  if (due_count_ == 0 || !window_.open() || !failure_.empty()) return 0;
  const std::uint32_t s = due_[due_first_];
  due_first_ = (due_first_ + 1) % due_.size();
  --due_count_;
  Slot& slot = slots_[s];
  Header h = header_of(s);
  std::size_t bytes = sizeof(Header);
  if (slot.asks) {
    h.kind = Kind::question;
    ++asked_;
  } else {
    bytes += write_values(s, h, to.subspan(bytes));
  }
  seal(h, pool_.job, to.first(bytes));
  slot.state = State::waiting;
  slot.asked = slot.asks;
  slot.asks = slot.told_to_wait = false;
  slot.sent = now;
  slot.unanswered += slot.times > 0 ? 1 : 0;
  ++(slot.times++ > 0 ? repeated_ : progress_);
  slot.doublings = round_trips_.doublings(slot.waits + slot.timeouts / kTimeoutsForADoubling);
  timers_.set(s, now, round_trips_.timeout(slot.doublings, window_.growth(), window_.queueing()));
  const bool opens = slot.piece == kNoPiece;
  const double share = pool_.zeros && !opens ? 1 : share_of(bytes - sizeof(Header));
  window_.sent(s, now, share, opens ? 0 : result_share_, due_count_ > 0);
  if (!slot.asked) slot.contributed = window_.number(s);
  if (slot.times == 1) slot.first_sent = slot.contributed;
  return bytes;
}

void SlotWorker::receive(std::span<const std::byte> bytes, Time now) {
  const auto packet = open(bytes, pool_.job);
  const bool answer = packet && (packet->header.kind == Kind::result || packet->header.kind == Kind::waiting);
  if (!answer || packet->header.slot >= slots_.size() || !failure_.empty()) {
    ++refused_;
    return;
  }
  const Header& h = packet->header;
  Slot& slot = slots_[h.slot];
  // A slot that is due again has been sent before, so its result may come all the same.
  const bool expected = slot.state == State::waiting || (slot.state == State::due && slot.times > 0);
  if (!expected) return;
  if (h.kind == Kind::waiting && h.flags & kAbsent) return take_absent(h.slot, h);
  if (h.round != slot.round) return;  // a copy that comes late
  if (h.kind == Kind::waiting) return take_waiting(h.slot, h, now);
  if (!makes_sense(slot, h.slot, *packet)) {
    failure_ = fmt::format("the aggregator's result for slot {}, round {}, piece {} cannot be", h.slot,
                           h.round, h.piece);
    return;
  }
  if (h.flags & kClamped) {
    failure_ =
        "a value was beyond the exponent that its rank had announced: a buffer changed while it was in use";
    return;
  }
  take_result(h.slot, *packet, now);
}

void SlotWorker::take_waiting(std::uint32_t s, const Header& h, Time now) {
  Slot& slot = slots_[s];
  window_.left(s);
  // Contributions that come for the first time are not answered in this way. So it is known which packet was.
  if (slot.unanswered == 1) {
    round_trips_.measured(now, now - slot.sent);
    window_.told_to_wait(s, now, now - slot.sent);
    let_go_of_lost(s);
  }
  slot.unanswered = 0;
  slot.told_to_wait = true;
  missing_ = Missing{.first = h.rank,
                     .count = static_cast<int>(h.piece),
                     .opening = slot.piece == kNoPiece,
                     .tensor = slot.tensor};
}

/// The aggregator does not have this rank's contribution to a round. If that is the slot's next round, the
/// result of the present one has been lost.
void SlotWorker::take_absent(std::uint32_t s, const Header& h) {
  Slot& slot = slots_[s];
  const bool lost_result = h.round == slot.round + 1;
  if (h.round != slot.round && !lost_result) return;
  // What the aggregator said before the contribution could come to it is over.
  if (!lost_result && !sent_later(h, s)) return;
  slot.told_to_wait = false;
  slot.asks = lost_result && may_ask(slot);
  if (slot.state == State::due) return;
  window_.left(s);
  timers_.clear(s);
  make_due_first(s);
}

/// Whether the packet that caused this answer was sent later than the slot's contribution, as far as is
/// known.
bool SlotWorker::sent_later(const Header& absent, std::uint32_t s) const {
  const auto number = static_cast<std::uint32_t>(absent.blocks >> 32);
  const auto round = static_cast<std::uint32_t>(absent.blocks);
  if (number == s && round == absent.round) return slots_[s].asked;
  if (number >= slots_.size()) return false;
  const Slot& cause = slots_[number];
  if (round == cause.round) return cause.first_sent > slots_[s].contributed;
  return round + 1 == cause.round && cause.first_sent_before > slots_[s].contributed;
}

bool SlotWorker::makes_sense(const Slot& slot, std::uint32_t number, const Opened& packet) {
  const Header& h = packet.header;
  Tensor& tensor = *tensors_[slot.tensor % tensors_.size()].tensor;
  if (h.piece != slot.piece || h.shape != tensor.shape()) return false;
  if (packet.values.empty() ? slot.mine
                            : h.piece == kNoPiece || packet.values.size() != tensor.values(h.piece, h.blocks))
    return false;
  if (h.next == kNoPiece) return slot.ahead.piece == kNoPiece;
  const std::uint32_t step = slots_used(tensor.pieces(), pool_.slots);
  const bool later = h.piece == kNoPiece || h.next > h.piece;
  return later && h.next < tensor.pieces() && h.next % step == number && h.next <= slot.ahead.piece;
}

void SlotWorker::take_result(std::uint32_t s, const Opened& packet, Time now) {
  Slot& slot = slots_[s];
  const Header& h = packet.header;
  timers_.clear(s);
  missing_.reset();
  window_.answered(s, now, share_of(packet.values.size_bytes()));
  if (slot.state == State::due) cancel_due(s);
  slot.state = State::waiting;
  if (slot.times == 1) note_answered_once(s, now);
  if (slot.piece != kNoPiece)
    result_share_ += (share_of(packet.values.size_bytes()) - result_share_) * kShareGain;
  if (!packet.values.empty()) tensor_of(slot).store(slot.piece, slot.exponent, h.blocks, packet.values);
  ++slot.round;
  ++progress_;
  slot.first_sent_before = slot.first_sent;
  slot.first_sent = 0;
  slot.times = slot.unanswered = slot.timeouts = slot.waits = 0;
  slot.told_to_wait = slot.asks = false;
  if (h.next == kNoPiece) {
    leave_tensor(s);
    return begin(s);
  }
  tensor_of(slot).advanced(s, h.next);
  slot.piece = h.next;
  slot.exponent = h.next_exponent;
  slot.mine = slot.ahead.piece == h.next;
  slot.mine ? look(s) : make_due(s);
}

/// Learns from a round trip, and repeats what was sent before it and has not come back: at once, because the
/// window has room for it now.
void SlotWorker::note_answered_once(std::uint32_t s, Time now) {
  const Slot& slot = slots_[s];
  // Opening rounds are headers only, which are back sooner than the packets behind them will be.
  if (slot.piece != kNoPiece) {
    window_.in_order(s) ? round_trips_.measured(now, now - slot.sent) : round_trips_.bounded(now - slot.sent);
    round_trips_.round_took(now - slot.sent);
  }
  window_.measured(s, now, now - slot.sent);
  let_go_of_lost(s);
}

/// Those that were sent before this slot and have not come back are lost, or wait for other ranks.
void SlotWorker::let_go_of_lost(std::uint32_t s) {
  window_.note_answer(s);
  window_.find_lost([this](std::uint32_t lost) {
    if (slots_[lost].times > 1 || !must_find_out(slots_[lost])) return;  // its timer repeats it
    timers_.clear(lost);
    slots_[lost].asks = may_ask(slots_[lost]);
    make_due_first(lost);
  });
}

void SlotWorker::leave_tensor(std::uint32_t s) {
  Slot& slot = slots_[s];
  Entry& entry = tensors_[slot.tensor % tensors_.size()];
  ++slot.tensor;
  if (--entry.slots_left == 0) ++tensors_ended_;
  entry.tensor->advanced(s, entry.tensor->pieces());  // after the last of these, the tensor may be gone
}

}  // namespace nzcl::engine::slot_pool
