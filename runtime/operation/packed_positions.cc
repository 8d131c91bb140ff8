#include "runtime/operation/packed_positions.h"

#include <algorithm>

namespace nzcl::engine {

PackedPositions::PackedPositions(std::uint64_t pieces, int lanes)
    : counts_(new std::atomic<std::int64_t>[pieces]), cursors_(static_cast<std::size_t>(lanes)) {
  for (std::uint64_t p = 0; p < pieces; ++p) counts_[p].store(kUnknown, std::memory_order_relaxed);
}

std::optional<std::uint64_t> PackedPositions::before(std::uint64_t piece, int number) noexcept {
  Cursor& lane = cursors_[static_cast<std::size_t>(number)];
  // The pieces of one lane come almost in order. Where they do not, it is few steps back, over pieces that
  // are counted, and many from the first piece on.
  while (lane.piece > piece)
    lane.blocks -= static_cast<std::uint64_t>(count(--lane.piece, std::memory_order_relaxed));
  while (lane.piece < piece) {
    const std::int64_t blocks = count(lane.piece, std::memory_order_acquire);
    if (blocks < 0) {
      if (await(number, piece)) return std::nullopt;
      continue;
    }
    lane.blocks += static_cast<std::uint64_t>(blocks);
    ++lane.piece;
  }
  if (lane.wanted.load(std::memory_order_relaxed) == piece)
    lane.missing.store(kNone, std::memory_order_relaxed);
  return lane.blocks;
}

/// Says that the lane waits for the piece at which it has stopped counting, because it wants to place the
/// piece `wanted`. Returns false if the piece at which it has stopped is counted by now.
///
/// The store to `missing` and the load of the count are sequentially consistent, like the store and the load
/// in note(): either the lane sees the count here, or whoever notes it sees that the lane waits.
bool PackedPositions::await(int number, std::uint64_t wanted) noexcept {
  if (bells_ == nullptr) return true;
  Cursor& lane = cursors_[static_cast<std::size_t>(number)];
  const std::uint64_t missing = lane.missing.load(std::memory_order_relaxed);
  const std::uint64_t earlier = lane.wanted.load(std::memory_order_relaxed);
  if (missing == lane.piece && earlier <= wanted) return true;          // it waits already
  if (missing != kNone && earlier <= lane.piece) bells_->ring(number);  // that one can be placed by now
  // A lane that wants several pieces is rung for the first of them, and asks for the others again.
  const bool still = missing != kNone && earlier > lane.piece;
  lane.wanted.store(still ? std::min(earlier, wanted) : wanted, std::memory_order_relaxed);
  lane.missing.store(lane.piece, std::memory_order_seq_cst);
  return count(lane.piece, std::memory_order_seq_cst) < 0;
}

void PackedPositions::note(std::uint64_t piece, std::uint64_t blocks) noexcept {
  // Sequentially consistent, with the load below: see await().
  counts_[piece].store(static_cast<std::int64_t>(blocks), std::memory_order_seq_cst);
  if (bells_ == nullptr) return;
  for (std::size_t lane = 0; lane < cursors_.size(); ++lane) {
    if (cursors_[lane].missing.load(std::memory_order_seq_cst) == piece) pass_on(lane, piece);
  }
}

/// Called when the piece has been counted that a lane waits for. Lets it wait for the next one that is
/// missing, or rings it if there is none any more. Several threads may come here for one lane, and one of
/// them goes on.
void PackedPositions::pass_on(std::size_t number, std::uint64_t piece) noexcept {
  Cursor& lane = cursors_[number];
  while (true) {
    const std::uint64_t wanted = lane.wanted.load(std::memory_order_relaxed);
    std::uint64_t next = piece + 1;
    while (next < wanted && count(next, std::memory_order_acquire) >= 0) ++next;
    const bool all = next >= wanted;
    // If this fails, the lane has looked itself, or another thread is here.
    if (!lane.missing.compare_exchange_strong(piece, all ? kNone : next, std::memory_order_seq_cst)) return;
    if (all) return bells_->ring(static_cast<int>(number));
    // Whoever has counted this one meanwhile may not have seen that the lane waits for it: as in await().
    if (count(next, std::memory_order_seq_cst) < 0) return;
    piece = next;
  }
}

}  // namespace nzcl::engine
