// A lane's datagram port, and what the members of a lane tell each other about theirs.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/switch/slot_sets.h"
#include "verbs/datagram/datagram.h"

namespace nzcl::engine::slot_pool {

/// The largest piece: larger packets would not make the exchange faster, but slots hold fewer of them.
inline constexpr std::uint32_t kMostPieceElements = 2048;
/// Of any aggregator. Those of nzcl_switch are chosen by whoever starts it, within these bounds.
inline constexpr std::uint32_t kLeastSlots = 4;
inline constexpr std::uint32_t kMostSlots = 1024;
/// The memory of an aggregator's slots.
inline constexpr std::size_t kMostSlotBytes = 16 << 20;
/// What all workers together may have under way to an aggregator before they have measured that its link
/// takes more, and how many packets each one: README.md says why.
inline constexpr std::size_t kUnderWayUnmeasured = 1 << 20;
inline constexpr std::uint32_t kLeastWindow = 4, kMostWindowUnmeasured = 256;

/// What a member says about its port. An aggregator says more: the job and the number of slots.
struct PortAddress {
  std::string address;
  std::uint64_t max_bytes = 0;
  std::uint32_t slots = 0;   // of a worker: 0
  std::uint32_t window = 0;  // Pool::window; of a worker: 0
  Job job;
  bool zeros = false;  // Pool::zeros

  std::string encode() const;
  /// Throws Error{transport} that names the member, for a text that is not valid.
  static PortAddress decode(const std::string& text, const std::string& member);
};

/// A tag and a key that nobody can guess. Throws Error{system}.
Job draw_job();

/// How many slots an aggregator has: as many as its memory allows.
std::uint32_t slots_for(const verbs::DatagramPort& port);

/// Pool::window, so that neither an aggregator's socket nor the queue of its link gets more than it can hold.
std::uint32_t window_for(const verbs::DatagramPort& port, int workers);

/// The size of pieces that the packets of all members can carry.
std::uint32_t common_piece_elements(std::span<const PortAddress> members);

}  // namespace nzcl::engine::slot_pool
