// The two ends of a channel: a ring of slots, and credits that say how many of them the sender may use.
// Usually a slot is memory of the receiver, into which the sender writes a message. Where the receiver can
// read the sender's memory, a slot only stands for a staging buffer that the sender *lends*. There is no I/O
// here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/channel/staging.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/seal.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// The sender's end. For one thread. Invariant: sent - credited <= slots, so a slot is used again only after
/// its credit has come back.
class SendChannel {
 public:
  SendChannel() = default;
  /// Makes a channel whose messages are written into the receiver's `ring`, where a slot begins every
  /// `stride` bytes.
  SendChannel(verbs::RemoteMemory ring, std::uint64_t stride, std::uint32_t slots)
      : target_(ring), stride_(stride), slots_(slots) {}
  /// Makes a channel whose messages are lent. Only an announcement is sent, with a write of one byte to
  /// `sink` that nobody reads.
  static SendChannel lending(verbs::RemoteMemory sink, std::uint32_t slots) {
    SendChannel channel(sink, 0, slots);
    channel.lent_.resize(slots);
    return channel;
  }

  bool lends() const { return !lent_.empty(); }
  bool ready() const { return sent_ - credited_ < slots_; }
  verbs::RemoteMemory target() const { return target_.offset(next_slot_ * stride_); }
  /// Takes the next slot for the message in `staging`. Returns the value of the immediate that announces it.
  /// Precondition: ready().
  std::uint16_t take(StagingPool::Index staging) {
    const std::uint32_t slot = next_slot_;
    ++sent_;
    if (++next_slot_ == slots_) next_slot_ = 0;
    if (!lends()) return static_cast<std::uint16_t>(slot);
    lent_[slot] = staging;
    return static_cast<std::uint16_t>(staging);
  }
  /// Returns how many more slots the receiver has released than it had said before, if it has now released
  /// `total` since the start, modulo 2^16. A total that has come late gives 0 or less. Returns nothing if the
  /// total is more than was sent, which only a faulty peer says.
  std::optional<int> newly_credited(std::uint16_t total) const {
    const auto delta = static_cast<std::int16_t>(total - static_cast<std::uint16_t>(credited_));
    if (delta > 0 && static_cast<std::uint64_t>(delta) > sent_ - credited_) return std::nullopt;
    return delta;
  }
  /// The number of slots that the receiver has said it has released since the start.
  std::uint64_t credited() const { return credited_; }
  std::uint32_t slots() const { return slots_; }
  /// Called when the receiver says that it has released `total` slots since the start, modulo 2^16. A smaller
  /// total than an earlier one has come late and is ignored. Lent buffers go back to `pool` with their slots.
  /// Returns false if the total is more than was sent, which only a faulty peer says.
  bool credit(std::uint16_t total, StagingPool& pool) {
    const auto delta = newly_credited(total);
    if (!delta) return false;
    for (int i = 0; i < *delta; ++i, ++credited_) {
      if (lends()) pool.release(lent_[credited_ % slots_]);
    }
    return true;
  }

 private:
  verbs::RemoteMemory target_;
  std::uint64_t stride_ = 0;
  std::uint32_t slots_ = 0;
  std::uint64_t sent_ = 0;
  std::uint32_t next_slot_ = 0;  // sent_ modulo slots_
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
  /// Makes a channel whose messages arrive in `ring`, where a slot begins every `stride` bytes.
  ReceiveChannel(std::byte* ring, std::uint64_t stride, std::uint32_t slots)
      : ReceiveChannel(ring, stride, slots, slots) {
    ring_ = ring;
  }
  /// Makes a channel whose messages are lent. Each lies in one of the sender's `buffers` buffers, which begin
  /// every `stride` bytes from `base` on, and its announcement says in which one. The transport must keep
  /// announcements in order.
  static ReceiveChannel borrowing(const std::byte* base, std::uint64_t stride, std::uint32_t slots,
                                  std::uint32_t buffers) {
    ReceiveChannel channel(base, stride, slots, buffers);
    channel.borrows_ = true;
    return channel;
  }

  /// Returns where the message lies that an announcement is about, or nullptr if arrived() would refuse it.
  const std::byte* announced(std::uint16_t value) const {
    return value < buffers_ && state_[slot_of(value)] == State::free ? base_ + value * stride_ : nullptr;
  }
  /// Overwrites the 8 bytes of the seal that lies `at` bytes into that message, so that what stays in the
  /// slot is never taken for another message. Lent messages stay as they are: they are the sender's, and no
  /// stranger can announce one.
  void break_seal(std::uint16_t value, std::uint64_t at) const {
    if (ring_ != nullptr) std::memset(ring_ + value * stride_ + at, 0, wire::kSealBytes);
  }
  /// Fetches the beginning of that message into the cache, so that the headers of several messages are on
  /// their way at the same time, and all of a small one. `value` may be anything.
  void prefetch(std::uint16_t value) const {
    if (value < buffers_) fetch(base_ + value * stride_, kFetchedBytes);
  }
  /// Does the same with the place of a message of `bytes` that has not come yet. Its writer takes the lines
  /// back, and this side asks for them again as often as it calls this: so they come over together with the
  /// announcement, and not one after the other behind it.
  void prefetch_next(std::uint64_t bytes) const {
    if (ring_ != nullptr) fetch(base_ + next_slot_ * stride_, std::min(bytes, kFetchedBytes));
  }

  /// Takes an announcement that SendChannel::take() made. Returns false if it names no buffer of this
  /// channel, or if its slot is taken already.
  bool arrived(std::uint16_t value) {
    if (announced(value) == nullptr) return false;
    const std::uint32_t slot = slot_of(value);
    state_[slot] = State::arrived;
    buffer_[slot] = value;
    ++arrived_;
    return true;
  }
  /// Returns the next message in order, if it has arrived. It belongs to the caller until release().
  Received pop() {
    const std::uint32_t slot = next_slot_;
    if (slots_ == 0 || state_[slot] != State::arrived) return {};
    state_[slot] = State::held;
    ++next_;
    if (++next_slot_ == slots_) next_slot_ = 0;
    return {base_ + buffer_[slot] * stride_, slot};
  }
  void release(std::uint32_t slot) {
    state_[slot] = State::released;
    while (released_ < next_ && state_[released_slot_] == State::released) {
      state_[released_slot_] = State::free;
      ++released_;
      if (++released_slot_ == slots_) released_slot_ = 0;
    }
  }
  /// Returns true if half of the ring has been released since the sender was last told. That is worth a write
  /// of its own. Of messages that are lent no more than kLentUntold stay untold, because they hold buffers.
  bool credit_due() const {
    const std::uint32_t half = (slots_ + 1) / 2;
    return released_ - told_ >= (borrows_ ? std::min(half, kLentUntold + 1) : half);
  }
  /// Returns the total of released slots, with which the caller tells the sender.
  std::uint64_t take_credit() { return told_ = released_; }
  std::uint32_t slots() const { return slots_; }

 private:
  enum class State : std::uint8_t { free, arrived, held, released };
  ReceiveChannel(const std::byte* base, std::uint64_t stride, std::uint32_t slots, std::uint32_t buffers)
      : base_(base),
        stride_(stride),
        slots_(slots),
        buffers_(buffers),
        state_(slots, State::free),
        buffer_(slots) {}

  /// What is fetched of a message: the header, the record, and a bitmap with a few values and the seal.
  static constexpr std::uint64_t kFetchedBytes = 4 * 64;
  static void fetch(const std::byte* message, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += 64) __builtin_prefetch(message + at);
  }
  /// The slot that an announcement is about. Precondition: value < buffers_.
  std::uint32_t slot_of(std::uint16_t value) const {
    return borrows_ ? static_cast<std::uint32_t>(arrived_ % slots_) : value;
  }

  const std::byte* base_ = nullptr;
  std::byte* ring_ = nullptr;  // the same, or nullptr if messages are lent
  std::uint64_t stride_ = 0;
  std::uint32_t slots_ = 0, buffers_ = 0;
  bool borrows_ = false;
  std::vector<State> state_;           // by slot
  std::vector<std::uint16_t> buffer_;  // by slot: the buffer that its message lies in
  std::uint64_t arrived_ = 0;
  std::uint64_t next_ = 0;  // messages popped
  std::uint32_t next_slot_ = 0;
  std::uint64_t released_ = 0;       // messages released, up to the first one that is still held
  std::uint32_t released_slot_ = 0;  // released_ modulo slots_
  std::uint64_t told_ = 0;           // how many of them the sender has been told of
};

}  // namespace nzcl::engine
