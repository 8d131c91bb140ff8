// Composes messages of tiles for one rank, and sends them as that rank has slots for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/channel/fixed_queue.h"
#include "runtime/channel/lane_context.h"
#include "runtime/channel/slot_writer.h"
#include "runtime/exchange/contributions/list_rule.h"
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
  /// `keeps`: what is sent is read here as well. `lists`: tiles may be told in lists.
  PartialSender(LaneContext& context, std::uint16_t to, bool keeps, bool lists);

  /// Whether any tile can be written, or a refusal.
  bool room() const {
    return std::max<std::size_t>(unsent_.size(), kept_.size()) + 1 + (open_ ? 1 : 0) <= kMergingKept &&
           context_.pool(kPriority).available() > 0;
  }
  /// Writes a tile, whose values write_values() writes to the place that it is given. `scratch` is the one
  /// that was given to code_tile(). Precondition of this and the next three: room().
  template <typename WriteValues>
  void put_tile(Operation& op, const TilePlace& place, const CodedTile& tile, TileScratch& scratch,
                WriteValues write_values) {
    if (!begin_tile(op, place, tile.most_bytes())) return;
    const std::uint64_t at = message_.bytes() - payload_at_;
    if (tile.part.count > 0) write_values(message_.next() + tile.values_at(at));
    write_tile(tile, at, scratch, message_.next());
    end_tiles(op, tile.bytes(at), 1);
  }
  /// Writes so many empty tiles, 1 .. wire::kMostEmptyTiles.
  void put_empty_tiles(Operation& op, const TilePlace& place, std::uint64_t tiles);
  /// Writes what this rank has of several tiles, from this place on, as a list.
  void put_list(Operation& op, const TilePlace& place, const OwnList& list);
  /// Writes a refusal in place of the slice.
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

  bool begin_tile(Operation& op, const TilePlace& place, std::uint64_t most_bytes);
  void end_tiles(Operation& op, std::uint64_t bytes, std::uint64_t tiles);
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

}  // namespace nzcl::engine
