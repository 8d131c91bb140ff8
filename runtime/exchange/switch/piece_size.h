// How many blocks share a packet that has all blocks of its piece.
#pragma once

#include <cstdint>

#include "runtime/plan/tuning.h"
#include "runtime/wire/density.h"

namespace nzcl::engine::slot_pool {

/// At most `most` blocks of `block_bytes` (as they travel). Where pieces are sent whole (Pool::zeros), a
/// packet has all blocks of its piece if one of them is not zero, so many blocks share the cost of a packet,
/// and few blocks leave more zeros out. Without a known density it is `most`. Otherwise the result for which
/// a block is expected to cost the least: with a density d of each rank's blocks, drawn independently, the
/// union of w ranks has u = 1 - (1 - d)^w, and 1 - (1 - u)^m of its pieces of m blocks. Ranks that expect the
/// same density find the same number; the operation's digest has both.
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
    const double cost = (1 - absent_piece) * packet / m;  // of a block
    if (m > 1 && cost > least) continue;                  // of equals the largest
    least = cost;
    best = m;
  }
  return best;
}

}  // namespace nzcl::engine::slot_pool
