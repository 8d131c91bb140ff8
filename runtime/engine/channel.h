// The two ends of a channel: a ring of slots in the receiver's memory, and the credits that bound it. No I/O
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbs/transport.h"

namespace nzcl::engine {

/// Sender's end. Invariant: sent - credited <= slots, so a slot is written again only after its credit came
/// back.
class SendChannel {
 public:
  SendChannel() = default;
  SendChannel(verbs::RemoteMemory ring, std::uint64_t slot_bytes, std::uint32_t slots)
      : ring_(ring), slot_bytes_(slot_bytes), slots_(slots) {}

  bool ready() const { return sent_ - credited_ < slots_; }
  std::uint16_t slot() const { return static_cast<std::uint16_t>(sent_ % slots_); }
  verbs::RemoteMemory target() const { return ring_.offset(slot() * slot_bytes_); }
  void advance() { ++sent_; }
  /// `total` slots were released since the start, modulo 2^16. Late (smaller) totals are ignored. False: not
  /// possible.
  bool credit(std::uint16_t total) {
    const auto delta = static_cast<std::int16_t>(total - static_cast<std::uint16_t>(credited_));
    if (delta <= 0) return true;
    if (static_cast<std::uint64_t>(delta) > sent_ - credited_) return false;
    credited_ += static_cast<std::uint64_t>(delta);
    return true;
  }

 private:
  verbs::RemoteMemory ring_;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t credited_ = 0;
};

/// Receiver's end. Messages come out in the order they were sent, whatever order they arrived in; slots may
/// be released in any order, credits count the leading run of released ones.
class ReceiveChannel {
 public:
  ReceiveChannel() = default;
  ReceiveChannel(const std::byte* ring, std::uint64_t slot_bytes, std::uint32_t slots)
      : ring_(ring), slot_bytes_(slot_bytes), slots_(slots), state_(slots, State::free) {}

  /// False: no such slot, or it is taken already.
  bool arrived(std::uint16_t slot) {
    if (slot >= slots_ || state_[slot] != State::free) return false;
    state_[slot] = State::arrived;
    return true;
  }
  /// The next message in order, or nullptr; it belongs to the caller until release().
  const std::byte* pop() {
    State& state = state_[next_ % slots_];
    if (state != State::arrived) return nullptr;
    state = State::held;
    return ring_ + (next_++ % slots_) * slot_bytes_;
  }
  void release(const std::byte* message) {
    state_[static_cast<std::size_t>(message - ring_) / slot_bytes_] = State::released;
    while (state_[released_ % slots_] == State::released && released_ < next_) {
      state_[released_++ % slots_] = State::free;
    }
  }
  /// Worth telling the sender: half of the ring.
  bool credit_due() const { return released_ - told_ >= (slots_ + 1) / 2; }
  std::uint16_t take_credit() {
    told_ = released_;
    return static_cast<std::uint16_t>(told_);
  }

 private:
  enum class State : std::uint8_t { free, arrived, held, released };
  const std::byte* ring_ = nullptr;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::vector<State> state_;
  std::uint64_t next_ = 0;      // messages popped
  std::uint64_t released_ = 0;  // leading run of released messages
  std::uint64_t told_ = 0;      // of which the sender knows
};

}  // namespace nzcl::engine
