// How many blocks share a packet that has all blocks of its piece.
#pragma once

#include <cstdint>

#include "runtime/switch/tuning.h"
#include "runtime/wire/density.h"

namespace nzcl::engine::slot_pool {

/// How many blocks of `block_bytes` bytes (as they travel) a piece has, from 1 to `most`. Where pieces are
/// sent whole (Pool::zeros), a packet carries all blocks of its piece as soon as one of them is not zero.
/// With many blocks in a piece they share the cost of the packet; with few, more zeros are left out. If the
/// density is not known, the answer is `most`. Otherwise it is the number for which a block is expected to
/// cost the least: if each rank holds a share d of the blocks, drawn independently, the union of w ranks
/// holds a share u = 1 - (1 - d)^w, and a piece of m blocks is sent with the probability 1 - (1 - u)^m. Ranks
/// that expect the same density find the same number; the operation's digest has both.
inline std::uint32_t blocks_of_piece(std::uint32_t most, std::uint64_t block_bytes, wire::Density density,
                                     int workers) {
  if (!density.known()) return most;
  const double absent_here = 1 - density.share();
  double absent = 1;  // the share of blocks that no rank has
  for (int rank = 0; rank < workers; ++rank) absent *= absent_here;
  double absent_piece = 1, least = 0;
  std::uint32_t best = most;
  for (std::uint32_t m = 1; m <= most; ++m) {
    absent_piece *= absent;
    const double packet = static_cast<double>(m * block_bytes + kPacketCostBytes);
    const double cost = (1 - absent_piece) * packet / m;  // what one block costs
    if (m > 1 && cost > least) continue;                  // if several cost the same, the largest is taken
    least = cost;
    best = m;
  }
  return best;
}

}  // namespace nzcl::engine::slot_pool
