// Composes messages of tiles for one rank, and sends them as that rank has slots for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/channel/fixed_queue.h"
#include "runtime/channel/lane_context.h"
#include "runtime/channel/slot_writer.h"
#include "runtime/exchange/merging/tile_queue.h"
#include "runtime/operation/operation.h"
#include "runtime/tile/tile_codec.h"

namespace nzcl::engine {

/// A message is closed when it is full, or when its owner has no more for it now; it is sent when there is a
/// credit. The owner may want to read what was sent, because what it holds itself is merged with what comes
/// back: then a message stays in its buffer until it has been read here as well. It allocates nothing after
/// construction. For one thread.
class PartialSender {
 public:
  /// Where a tile is to be written.
  struct Room {
    std::byte* to = nullptr;
    std::uint64_t at = 0;     // where that is in the section's payload
    std::uint64_t bytes = 0;  // that may be written
  };

  /// `keeps`: what is sent is read here as well.
  PartialSender(LaneContext& context, std::uint16_t to, bool keeps);

  /// Whether any tile can be written, or a refusal.
  bool room() const {
    return std::max<std::size_t>(unsent_.size(), kept_.size()) + 1 + (open_ ? 1 : 0) <= kMergingKept &&
           context_.pool(kPriority).available() > 0;
  }
  /// Begins a tile that takes at most `most_bytes` bytes. Returns a null place, after a failure, if no
  /// message has room for it, which would be a fault of nzcl's own. Precondition: room().
  Room begin_tile(Operation& op, const TilePlace& place, std::uint64_t most_bytes);
  /// Ends the tile, whose bytes have been written, or so many tiles if they are empty.
  void end_tile(Operation& op, std::uint64_t bytes, std::uint64_t tiles = 1);
  /// Writes so many empty tiles, 1 .. wire::kMostEmptyTiles. Precondition: room().
  void put_empty_tiles(Operation& op, const TilePlace& place, std::uint64_t tiles);
  /// Writes a refusal in place of the slice. Precondition: room().
  void refuse(Operation& op, const TilePlace& place, const wire::Refusal& refusal);
  /// Whether a message has been begun.
  bool open() const { return open_; }
  /// Ends the message, if there is one.
  void close();
  /// Sends what has been closed, as far as possible. Returns true if that was anything.
  bool send();
  bool all_sent() const { return unsent_.empty() && !open_; }
  std::uint16_t to() const { return to_; }

  /// What was closed and has not been read here.
  TileQueue& kept() { return kept_; }
  /// Gives back a message that has been read.
  void release(std::uint32_t token) { context_.pool(kPriority).release(token); }

 private:
  static constexpr wire::Priority kPriority = wire::Priority::merging;
  struct Composed {
    StagingPool::Index buffer = 0;
    std::uint32_t bytes = 0;
  };

  bool make_room(Operation& op, const TilePlace& place, std::uint64_t bytes, bool section);
  void fail_without_room(const Operation& op);
  void open_message();
  bool begin_section(Operation& op, const TilePlace& place);
  void end_section();

  LaneContext& context_;
  const std::uint16_t to_;
  const bool keeps_;
  const std::uint64_t slot_bytes_;
  FixedQueue<Composed> unsent_;
  TileQueue kept_;
  // The message that is being composed:
  bool open_ = false;
  StagingPool::Index buffer_ = 0;
  SlotWriter message_;
  std::uint32_t sections_ = 0;
  wire::Header header_;             // the header of the last section,
  std::byte* header_at_ = nullptr;  // where that section begins,
  std::uint64_t payload_at_ = 0;    // and where its payload begins in the message
};

/// Completes a tile of `part` that begins at `room`, and whose values are in place. Returns its bytes. The
/// scratch is the one that was given to choose_code().
std::uint64_t write_tile(const PartialSender::Room& room, const TilePart& part, std::size_t units,
                         std::uint64_t value_bytes, const CodeChoice& choice, TileScratch& scratch);

/// The most bytes that a tile takes of which `held` elements are there.
constexpr std::uint64_t most_tile_bytes(const wire::TileShape& shape, std::uint64_t held,
                                        std::uint64_t value_bytes) {
  return wire::kTileOverhead + std::min(held, shape.elements) * value_bytes + (shape.units() + 63) / 64 * 8;
}

}  // namespace nzcl::engine
