// An aggregator below another one: a switch below a switch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/switch/slot_intake.h"

namespace nzcl::engine::slot_pool {

/// Sums what its children send, as SlotServer does, but sends the sum up as one contribution. The result from
/// above completes the set, and goes to all children. To those, a relay is an aggregator; to the aggregator
/// above, it is a rank. It has no timers: a child that asks for a sum that is not complete makes it ask
/// above.
///
/// Values need no more room for being summed twice: ranks leave room for the sum of all of them.
///
/// A state machine without I/O, like SlotServer. What it tells children about who is missing are numbers
/// below the aggregator that waits.
class SlotRelay {
 public:
  /// Its children's pool, and the pool above, in which it has this rank. Both have the same slots and pieces.
  SlotRelay(const Pool& below, const Pool& above, int rank);

  /// Takes a packet that came from the address of this child.
  void receive(int child, std::span<const std::byte> packet);
  /// Takes a packet that came from the address of the aggregator above.
  void receive_from_above(std::span<const std::byte> packet);
  /// The packet to send next, or nothing. Its bytes stay valid until receive() or pop().
  std::optional<Out> front();
  void pop() { intake_.pop(); }

  /// Why no sum can be right any more; empty as long as it can.
  const std::string& failure() const { return intake_.failure(); }
  std::uint64_t refused() const { return intake_.refused(); }

 private:
  void take_result(std::uint32_t set, const Opened& packet);
  bool makes_sense(const SlotSets::Set& set, const Opened& packet) const;
  std::optional<std::span<const std::byte>> packet_for(const Answer& answer);
  std::optional<std::span<const std::byte>> packet_for_above(const Answer& answer);
  Header waiting_above(std::uint32_t set);

  const Pool below_, above_;
  const int rank_;
  SlotIntake intake_;
};

}  // namespace nzcl::engine::slot_pool
