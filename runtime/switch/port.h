// A lane's datagram port, and what the members of a lane tell each other about theirs.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/switch/slot_sets.h"
#include "verbs/datagram/datagram.h"

namespace nzcl::engine::slot_pool {

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
