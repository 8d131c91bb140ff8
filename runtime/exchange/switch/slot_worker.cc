#include "runtime/exchange/switch/slot_worker.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>

namespace nzcl::engine::slot_pool {

SlotWorker::SlotWorker(const Pool& pool, int rank, std::size_t most_tensors)
    : pool_(pool),
      rank_(rank),
      slots_(pool.slots),
      tensors_(most_tensors),
      due_(pool.slots),
      timers_(pool.slots) {}

void SlotWorker::submit(Tensor& tensor) {
  assert(tensors_begun_ - tensors_ended_ < tensors_.size());
  const std::uint64_t number = tensors_begun_++;
  tensors_[number % tensors_.size()] = {&tensor, pool_.slots};
  for (std::uint32_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].state == State::idle && slots_[s].tensor == number) begin(s);
  }
}

/// Begins the slot's tensor, if it has been submitted. Slots behind a tensor's last piece leave it out.
void SlotWorker::begin(std::uint32_t s) {
  Slot& slot = slots_[s];
  slot.state = State::idle;
  while (slot.tensor != tensors_begun_) {
    if (s == 0 || s < tensor_of(slot).pieces()) {
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
  const std::uint32_t from = slot.piece == kNoPiece ? s : slot.piece + pool_.slots;
  Tensor& tensor = tensor_of(slot);
  if (from >= tensor.pieces()) {
    slot.ahead = {};
  } else if (!tensor.look_ahead(from, pool_.slots, slot.ahead)) {
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

void SlotWorker::advance(Time now) {
  timers_.advance(now, [this](std::uint32_t s) {
    if (slots_[s].state != State::waiting) return;
    if (!slots_[s].told_to_wait) round_trips_.expired(slots_[s].doublings);
    make_due(s);
  });
  for (std::uint32_t s = 0; looking_ > 0 && s < slots_.size(); ++s) {
    if (slots_[s].state == State::looking) look(s);
  }
}

std::size_t SlotWorker::next_packet(std::span<std::byte> to, Time now) {
  if (due_count_ == 0 || !failure_.empty()) return 0;
  const std::uint32_t s = due_[due_first_];
  due_first_ = (due_first_ + 1) % due_.size();
  --due_count_;
  Slot& slot = slots_[s];
  Header h;
  h.rank = static_cast<std::uint16_t>(rank_);
  h.slot = static_cast<std::uint16_t>(s);
  h.round = slot.round;
  h.piece = slot.piece;
  h.exponent = slot.exponent;
  h.next = slot.ahead.piece;
  h.next_exponent = slot.ahead.exponent;
  h.shape = tensor_of(slot).shape();
  std::size_t bytes = sizeof(Header);
  if (slot.mine) {
    auto* const values = reinterpret_cast<std::int32_t*>(to.data() + sizeof(Header));
    const Filled filled = tensor_of(slot).fill(slot.piece, slot.exponent, {values, pool_.piece_elements});
    h.flags = static_cast<std::uint8_t>(kHasValues | (filled.clamped ? kClamped : 0));
    h.blocks = filled.blocks;
    bytes += filled.values * sizeof(std::int32_t);
  } else if (pool_.zeros && slot.piece != kNoPiece) {
    const std::size_t zeros = tensor_of(slot).elements(slot.piece) * sizeof(std::int32_t);
    std::memset(to.data() + bytes, 0, zeros);
    h.flags = kHasValues;
    bytes += zeros;
  }
  seal(h, pool_.job, to.first(bytes));
  slot.state = State::waiting;
  slot.sent = now;
  ++(slot.times > 0 ? repeated_ : progress_);
  slot.doublings = round_trips_.doublings(++slot.times);
  timers_.set(s, now, round_trips_.timeout(slot.doublings));
  return bytes;
}

void SlotWorker::receive(std::span<const std::byte> bytes, Time now) {
  const auto packet = open(bytes, pool_.job);
  if (!packet || packet->header.slot >= slots_.size() || packet->header.kind == Kind::contribution ||
      !failure_.empty()) {
    ++refused_;
    return;
  }
  const Header& h = packet->header;
  Slot& slot = slots_[h.slot];
  // A slot that is due again has been sent before, so its result may come all the same.
  const bool expected = slot.state == State::waiting || (slot.state == State::due && slot.times > 0);
  if (!expected || h.round != slot.round) return;  // a copy that comes late
  if (h.kind == Kind::waiting) {
    slot.told_to_wait = true;
    missing_ = Missing{.first = h.rank,
                       .count = static_cast<int>(h.piece),
                       .opening = slot.piece == kNoPiece,
                       .tensor = slot.tensor};
    return;
  }
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

bool SlotWorker::makes_sense(const Slot& slot, std::uint32_t number, const Opened& packet) {
  const Header& h = packet.header;
  Tensor& tensor = *tensors_[slot.tensor % tensors_.size()].tensor;
  if (h.piece != slot.piece || h.shape != tensor.shape()) return false;
  if (packet.values.empty() ? slot.mine
                            : h.piece == kNoPiece || packet.values.size() != tensor.elements(h.piece))
    return false;
  if (h.next == kNoPiece) return slot.ahead.piece == kNoPiece;
  const bool later = h.piece == kNoPiece || h.next > h.piece;
  return later && h.next < tensor.pieces() && h.next % pool_.slots == number && h.next <= slot.ahead.piece;
}

void SlotWorker::take_result(std::uint32_t s, const Opened& packet, Time now) {
  Slot& slot = slots_[s];
  const Header& h = packet.header;
  timers_.clear(s);
  missing_.reset();
  if (slot.state == State::due) {  // it need not be sent again
    for (std::size_t i = 0, kept = 0, n = due_count_; i < n; ++i) {
      const std::uint32_t other = due_[(due_first_ + i) % due_.size()];
      if (other == s) {
        --due_count_;
      } else {
        due_[(due_first_ + kept++) % due_.size()] = other;
      }
    }
    slot.state = State::waiting;
  }
  // Opening rounds are headers only, which are back sooner than the packets behind them will be.
  if (slot.times == 1 && slot.piece != kNoPiece) round_trips_.measured(now - slot.sent);
  if (!packet.values.empty()) tensor_of(slot).store(slot.piece, slot.exponent, h.blocks, packet.values);
  ++slot.round;
  ++progress_;
  slot.times = 0;
  slot.told_to_wait = false;
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

void SlotWorker::leave_tensor(std::uint32_t s) {
  Slot& slot = slots_[s];
  Entry& entry = tensors_[slot.tensor % tensors_.size()];
  ++slot.tensor;
  if (--entry.slots_left == 0) ++tensors_ended_;
  entry.tensor->advanced(s, entry.tensor->pieces());  // after the last of these, the tensor may be gone
}

}  // namespace nzcl::engine::slot_pool
