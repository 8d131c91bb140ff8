// The two ends of a channel: a ring of slots, and credits that say how many of them the sender may use. A
// slot holds a message in the receiver's memory. Where the receiver can read the sender's memory, a slot only
// stands for a staging buffer that the sender *lends*. There is no I/O here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/channel/staging.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// The sender's end. Invariant: sent - credited <= slots, so a slot is used again only after its credit has
/// come back.
class SendChannel {
 public:
  SendChannel() = default;
  /// Messages are written into the receiver's `ring`.
  SendChannel(verbs::RemoteMemory ring, std::uint64_t slot_bytes, std::uint32_t slots)
      : target_(ring), slot_bytes_(slot_bytes), slots_(slots) {}
  /// Messages are lent: only an announcement is written, with a byte to `sink` that nobody reads.
  static SendChannel lending(verbs::RemoteMemory sink, std::uint32_t slots) {
    SendChannel channel(sink, 0, slots);
    channel.lent_.resize(slots);
    return channel;
  }

  bool lends() const { return !lent_.empty(); }
  bool ready() const { return sent_ - credited_ < slots_; }
  verbs::RemoteMemory target() const { return target_.offset(sent_ % slots_ * slot_bytes_); }
  /// Takes the next slot for the message in `staging`, and returns the value that announces it. Precondition:
  /// ready().
  std::uint16_t take(StagingPool::Index staging) {
    const auto slot = static_cast<std::uint32_t>(sent_++ % slots_);
    if (!lends()) return static_cast<std::uint16_t>(slot);
    lent_[slot] = staging;
    return static_cast<std::uint16_t>(staging);
  }
  /// The receiver has released `total` slots since the start, modulo 2^16. A smaller total than an earlier
  /// one has come late and is ignored. Lent buffers are given back to `pool` with their slots. False: more
  /// slots than were sent, which cannot be.
  bool credit(std::uint16_t total, StagingPool& pool) {
    const auto delta = static_cast<std::int16_t>(total - static_cast<std::uint16_t>(credited_));
    if (delta <= 0) return true;
    if (static_cast<std::uint64_t>(delta) > sent_ - credited_) return false;
    for (int i = 0; i < delta; ++i, ++credited_) {
      if (lends()) pool.release(lent_[credited_ % slots_]);
    }
    return true;
  }

 private:
  verbs::RemoteMemory target_;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t credited_ = 0;
  std::vector<StagingPool::Index> lent_;  // by slot
};

/// The receiver's end. Messages come out in the order in which they were sent, whatever the order in which
/// they arrived. Slots may be released in any order, but credits count only up to the first slot that is
/// still held.
class ReceiveChannel {
 public:
  struct Received {
    const std::byte* data = nullptr;  // nullptr: there is none
    std::uint32_t slot = 0;
  };

  ReceiveChannel() = default;
  /// Messages arrive in `ring`.
  ReceiveChannel(const std::byte* ring, std::uint64_t slot_bytes, std::uint32_t slots)
      : ReceiveChannel(ring, slot_bytes, slots, slots) {}
  /// Messages are lent: each lies in one of the sender's `buffers` of `slot_bytes` from `base` on, and its
  /// announcement says in which. The transport keeps announcements in order.
  static ReceiveChannel borrowing(const std::byte* base, std::uint64_t slot_bytes, std::uint32_t slots,
                                  std::uint32_t buffers) {
    ReceiveChannel channel(base, slot_bytes, slots, buffers);
    channel.borrows_ = true;
    return channel;
  }

  /// An announcement, as SendChannel::take() made it. False: it means nothing, or its slot is taken already.
  bool arrived(std::uint16_t value) {
    if (value >= buffers_) return false;
    const std::uint32_t slot = borrows_ ? static_cast<std::uint32_t>(arrived_ % slots_) : value;
    if (state_[slot] != State::free) return false;
    state_[slot] = State::arrived;
    buffer_[slot] = value;
    ++arrived_;
    const std::byte* message =
        base_ + value * slot_bytes_;  // prefetch, so that the headers of several messages come at once
    __builtin_prefetch(message);
    __builtin_prefetch(message + 64);
    return true;
  }
  /// The next message in order, if it is there; it belongs to the caller until release().
  Received pop() {
    const std::uint32_t slot = next_slot_;
    if (slots_ == 0 || state_[slot] != State::arrived) return {};
    state_[slot] = State::held;
    ++next_;
    if (++next_slot_ == slots_) next_slot_ = 0;
    return {base_ + buffer_[slot] * slot_bytes_, slot};
  }
  void release(std::uint32_t slot) {
    state_[slot] = State::released;
    while (state_[released_ % slots_] == State::released && released_ < next_) {
      state_[released_++ % slots_] = State::free;
    }
  }
  /// Half of the ring has been released since the sender was told: that is worth a write of its own.
  bool credit_due() const { return released_ - told_ >= (slots_ + 1) / 2; }
  std::uint16_t take_credit() {
    told_ = released_;
    return static_cast<std::uint16_t>(told_);
  }

 private:
  enum class State : std::uint8_t { free, arrived, held, released };
  ReceiveChannel(const std::byte* base, std::uint64_t slot_bytes, std::uint32_t slots, std::uint32_t buffers)
      : base_(base),
        slot_bytes_(slot_bytes),
        slots_(slots),
        buffers_(buffers),
        state_(slots, State::free),
        buffer_(slots) {}

  const std::byte* base_ = nullptr;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0, buffers_ = 0;
  bool borrows_ = false;
  std::vector<State> state_;           // by slot
  std::vector<std::uint16_t> buffer_;  // by slot: where its message lies
  std::uint64_t arrived_ = 0;
  std::uint64_t next_ = 0;  // messages popped
  std::uint32_t next_slot_ = 0;
  std::uint64_t released_ = 0;  // messages released, up to the first one that is still held
  std::uint64_t told_ = 0;      // the part of them that the sender knows of
};

}  // namespace nzcl::engine
