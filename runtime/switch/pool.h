// What the ranks and the aggregator of one lane have agreed about.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "runtime/switch/packet.h"

namespace nzcl::engine::slot_pool {

/// What all members of a lane agree about when they meet.
struct Pool {
  int workers = 1;
  std::uint32_t slots = 1;           // at most 65,536
  std::uint32_t piece_elements = 1;  // the most values of a packet
  Job job;
  /// Ranks send pieces whole, with zeros for the blocks that they do not hold, also for pieces of which they
  /// hold nothing: the aggregator turns a packet that it gets into its answer, and cannot make it longer.
  bool zeros = false;
  /// The packets that a rank may have under way before it has measured that its link takes more.
  std::uint32_t window = ~std::uint32_t{0};
};

/// The blocks that a packet has values of. A piece that is sent whole counts as one block.
inline std::uint64_t blocks_of(const Header& header, const Pool& pool) noexcept {
  return pool.zeros ? 1 : header.blocks;
}

/// How many values each block of a packet has, which is the same for all of its blocks. 0: the packet has no
/// values. Nothing: its number of values does not fit its blocks, or is too large for a piece.
inline std::optional<std::uint32_t> block_values(const Opened& packet, const Pool& pool) noexcept {
  const std::size_t values = packet.values.size();
  const std::uint64_t blocks = blocks_of(packet.header, pool);
  if (values == 0) return packet.header.blocks == 0 ? std::optional(0u) : std::nullopt;
  if (blocks == 0 || values > pool.piece_elements) return std::nullopt;
  const std::size_t each = values / static_cast<std::size_t>(std::popcount(blocks));
  if (each * static_cast<std::size_t>(std::popcount(blocks)) != values) return std::nullopt;
  if (each * static_cast<std::size_t>(std::bit_width(blocks)) > pool.piece_elements) return std::nullopt;
  return static_cast<std::uint32_t>(each);
}

}  // namespace nzcl::engine::slot_pool
