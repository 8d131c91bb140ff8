// The aggregator's half of the switch exchange: it answers contributions out of its slots.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/switch/slot_intake.h"

namespace nzcl::engine::slot_pool {

/// A state machine without I/O: it is given packets and asked for packets. It allocates only when it is made
/// and to describe a failure. One thread at a time may use it.
class SlotServer {
 public:
  explicit SlotServer(const Pool& pool);

  /// Takes a packet that came from the address of this rank.
  void receive(int rank, std::span<const std::byte> packet);
  /// The packet to send next, or nothing. Its bytes stay valid until receive() or pop(), those for all ranks
  /// until receive().
  std::optional<Out> front();
  void pop() { intake_.pop(); }

  /// Why no sum can be right any more; empty as long as it can.
  const std::string& failure() const { return intake_.failure(); }
  std::uint64_t completed() const { return completed_; }  // rounds
  /// Packets that no member made, or that make no sense.
  std::uint64_t refused() const { return intake_.refused(); }

 private:
  void complete(std::uint32_t set);

  const Job job_;
  SlotIntake intake_;
  std::uint64_t completed_ = 0;
};

}  // namespace nzcl::engine::slot_pool
