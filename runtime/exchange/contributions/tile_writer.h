// Writes this rank's contributions to tiled slices into messages, tile by tile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/channel/lane_context.h"
#include "runtime/channel/message_builder.h"
#include "runtime/exchange/contributions/list_rule.h"
#include "runtime/exchange/contributions/section_writer.h"
#include "runtime/tile/tile_codec.h"

namespace nzcl::engine {

/// Finds what a tile has, chooses how to code it, and writes it behind the others of a section. Values of a
/// dense input are packed directly into the message. Long values of a stream leave from the caller's memory
/// if the message may gather. Values of a compressed gradient are coded wherever that makes them shorter.
/// Owned by a worker and used by one thread.
class TileWriter {
 public:
  TileWriter(const LaneContext& context, wire::Priority priority);

  /// Appends a section with as many of the next tiles as make a message worth its cost. Returns its size, or
  /// 0 if not even one of them fits behind what the message has already. An empty message takes every tile.
  std::uint64_t write(MessageBuilder& message, Contribution& contribution, std::uint16_t credit);

 private:
  bool write_payload(MessageBuilder& message, Contribution& contribution, wire::Header& header);
  std::uint64_t add_tiles(MessageBuilder& message, const Contribution& contribution,
                          std::uint64_t payload_begin);
  static bool add_empty_tiles(MessageBuilder& message, std::uint64_t tiles);
  static bool add_list(MessageBuilder& message, Operation& operation, const OwnList& list, std::uint64_t at);
  bool add_tile(MessageBuilder& message, Operation& operation, std::uint64_t tile,
                std::uint64_t payload_begin);
  std::optional<CodedTile> code(const MessageBuilder& message, const Operation& operation, std::uint64_t tile,
                                std::uint64_t at);
  bool put(MessageBuilder& message, const CodedTile& tile, std::uint64_t at,
           const verbs::MemoryRegion* region);

  const CodeRules rules_;
  const ListRule lists_;
  TileScratch scratch_;
  const std::unique_ptr<std::byte[]> coded_;  // values of one tile, if they are shorter when coded
  std::uint64_t last_bytes_ = 0;              // of the tile before
};

}  // namespace nzcl::engine
