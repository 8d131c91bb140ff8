// The two ends of a channel: a ring of slots, and credits that say how many of them the sender may use.
// Usually a slot is memory of the receiver, into which the sender writes a message. Where the receiver can
// read the sender's memory, a slot only stands for a staging buffer that the sender *lends*. There is no I/O
// here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/channel/staging.h"
#include "runtime/plan/tuning.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// The sender's end. For one thread. Invariant: sent - credited <= slots, so a slot is used again only after
/// its credit has come back.
class SendChannel {
 public:
  SendChannel() = default;
  /// Makes a channel whose messages are written into the receiver's `ring`.
  SendChannel(verbs::RemoteMemory ring, std::uint64_t slot_bytes, std::uint32_t slots)
      : target_(ring), slot_bytes_(slot_bytes), slots_(slots) {}
  /// Makes a channel whose messages are lent. Only an announcement is sent, with a write of one byte to
  /// `sink` that nobody reads.
  static SendChannel lending(verbs::RemoteMemory sink, std::uint32_t slots) {
    SendChannel channel(sink, 0, slots);
    channel.lent_.resize(slots);
    return channel;
  }

  bool lends() const { return !lent_.empty(); }
  bool ready() const { return sent_ - credited_ < slots_; }
  verbs::RemoteMemory target() const { return target_.offset(sent_ % slots_ * slot_bytes_); }
  /// Takes the next slot for the message in `staging`. Returns the value of the immediate that announces it.
  /// Precondition: ready().
  std::uint16_t take(StagingPool::Index staging) {
    const auto slot = static_cast<std::uint32_t>(sent_++ % slots_);
    if (!lends()) return static_cast<std::uint16_t>(slot);
    lent_[slot] = staging;
    return static_cast<std::uint16_t>(staging);
  }
  /// Called when the receiver says that it has released `total` slots since the start, modulo 2^16. A smaller
  /// total than an earlier one has come late and is ignored. Lent buffers go back to `pool` with their slots.
  /// Returns false if the total is more than was sent, which only a faulty peer says.
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
  std::vector<StagingPool::Index> lent_;  // by slot: the buffer that its message lies in
};

/// The receiver's end. For one thread. Messages come out in the order in which they were sent, even if they
/// arrived in another one. Slots may be released in any order, but credits count only up to the first slot
/// that is still held.
class ReceiveChannel {
 public:
  struct Received {
    const std::byte* data = nullptr;  // nullptr if there is no message
    std::uint32_t slot = 0;
  };

  ReceiveChannel() = default;
  /// Makes a channel whose messages arrive in `ring`.
  ReceiveChannel(const std::byte* ring, std::uint64_t slot_bytes, std::uint32_t slots)
      : ReceiveChannel(ring, slot_bytes, slots, slots) {}
  /// Makes a channel whose messages are lent. Each lies in one of the sender's `buffers` buffers of
  /// `slot_bytes`, from `base` on, and its announcement says in which one. The transport must keep
  /// announcements in order.
  static ReceiveChannel borrowing(const std::byte* base, std::uint64_t slot_bytes, std::uint32_t slots,
                                  std::uint32_t buffers) {
    ReceiveChannel channel(base, slot_bytes, slots, buffers);
    channel.borrows_ = true;
    return channel;
  }

  /// Takes an announcement that SendChannel::take() made. Returns false if it names no buffer of this
  /// channel, or if its slot is taken already.
  bool arrived(std::uint16_t value) {
    if (value >= buffers_) return false;
    const std::uint32_t slot = borrows_ ? static_cast<std::uint32_t>(arrived_ % slots_) : value;
    if (state_[slot] != State::free) return false;
    state_[slot] = State::arrived;
    buffer_[slot] = value;
    ++arrived_;
    // Prefetched so that the headers of several messages are on their way into the cache at the same time.
    const std::byte* message = base_ + value * slot_bytes_;
    __builtin_prefetch(message);
    __builtin_prefetch(message + 64);
    return true;
  }
  /// Returns the next message in order, if it has arrived. It belongs to the caller until release().
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
  /// Returns true if half of the ring has been released since the sender was last told. That is worth a write
  /// of its own. Of messages that are lent no more than kLentUntold stay untold, because they hold buffers.
  bool credit_due() const {
    const std::uint32_t half = (slots_ + 1) / 2;
    return released_ - told_ >= (borrows_ ? std::min(half, kLentUntold + 1) : half);
  }
  /// Returns the total of released slots, modulo 2^16, with which the caller tells the sender.
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
  std::vector<std::uint16_t> buffer_;  // by slot: the buffer that its message lies in
  std::uint64_t arrived_ = 0;
  std::uint64_t next_ = 0;  // messages popped
  std::uint32_t next_slot_ = 0;
  std::uint64_t released_ = 0;  // messages released, up to the first one that is still held
  std::uint64_t told_ = 0;      // how many of them the sender has been told of
};

}  // namespace nzcl::engine
