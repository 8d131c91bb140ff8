#include "runtime/exchange/contributions/tile_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/kernels/index_codec.h"
#include "runtime/kernels/narrow.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_blocks.h"
#include "runtime/tile/value_codec.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

TileWriter::TileWriter(const LaneContext& context, wire::Priority priority)
    : rules_{context.config.index_code, context.config.short_codes},
      lists_(context, priority),
      scratch_(context.slot_bytes(priority)),
      coded_(new std::byte[context.slot_bytes(priority)]) {}

std::uint64_t TileWriter::write(MessageBuilder& message, Contribution& c, std::uint16_t credit) {
  Operation& op = *c.operation;
  const trace::Span span(trace::What::push, op.epoch, c.slice);
  const std::uint64_t staged = message.staged();
  wire::Header header;
  std::byte* const header_at =
      begin_section(message, c, header, {.bitmap = c.sent_tiles == 0, .data = true, .credit = credit});
  if (header_at == nullptr || !write_payload(message, c, header)) {
    message.take_back_to(staged);
    return 0;
  }
  return end_section(message, header_at, header);
}

/// Writes tiles, or why the request was refused. Returns false if not even one tile, or the reason, fits.
bool TileWriter::write_payload(MessageBuilder& message, Contribution& c, wire::Header& header) {
  Operation& op = *c.operation;
  if (op.refusal) {
    if (!write_refusal(message, header, *op.refusal)) return false;
    c.set_sent();
    return true;
  }
  const std::uint64_t begin = message.bytes();
  std::uint64_t covered = 0;
  while (!c.sent() && message.bytes() < kFullMessageBytes && covered < kMessageCoversBytes) {
    const std::uint64_t tiles = add_tiles(message, c, begin);
    if (tiles == 0) break;
    c.sent_tiles += tiles;
    header.tiles += static_cast<std::uint32_t>(tiles);
    if (!op.tile_input().needs_no_scan()) covered += op.layout.tile_elements() * op.layout.element_bytes();
  }
  header.flags |= wire::kTiles;
  header.payload_bytes = static_cast<std::uint32_t>(message.bytes() - begin);
  return header.tiles > 0;
}

/// Adds the next tile, or several that are empty or make up a list. Returns how many, or 0 if none fits.
std::uint64_t TileWriter::add_tiles(MessageBuilder& message, const Contribution& c,
                                    std::uint64_t payload_begin) {
  Operation& op = *c.operation;
  const OwnList list = lists_.list(op, c.slice, c.sent_tiles);
  if (list.units.count > 0)
    return add_list(message, op, list, message.bytes() - payload_begin) ? list.tiles : 0;
  const std::uint64_t tile = op.layout.tile_number(c.slice, c.sent_tiles);
  const std::uint64_t empty =
      op.tile_input().empty_tiles(tile, std::min(c.tiles - c.sent_tiles, wire::kMostEmptyTiles));
  if (empty > 0) return add_empty_tiles(message, empty) ? empty : 0;
  return add_tile(message, op, tile, payload_begin) ? 1 : 0;
}

/// Returns false, and adds nothing, if the list does not fit.
bool TileWriter::add_list(MessageBuilder& message, Operation& op, const OwnList& list, std::uint64_t at) {
  std::byte* const to = message.reserve(list.bytes(op.layout, at));
  if (to != nullptr) list.write(op, at, to);
  return to != nullptr;
}

/// Returns false, and adds nothing, if they do not fit.
bool TileWriter::add_empty_tiles(MessageBuilder& message, std::uint64_t tiles) {
  std::byte* const to = message.reserve(kEmptyTilesBytes);
  if (to != nullptr) write_empty_tiles(to, tiles);
  return to != nullptr;
}

/// Returns false, and adds nothing, if the tile does not fit.
bool TileWriter::add_tile(MessageBuilder& message, Operation& op, std::uint64_t number,
                          std::uint64_t payload_begin) {
  const std::uint64_t at = message.bytes() - payload_begin;
  // Reading a dense tile to find out that it does not fit would be a waste. Its size is about that of the one
  // before it.
  const bool alone = at == 0 && payload_begin <= wire::kMaxOverhead;
  if (!alone && message.room() < last_bytes_ + last_bytes_ / 8) return false;
  const auto tile = code(message, op, number, at);
  if (!tile || !put(message, *tile, at, op.tile_input().region())) return false;
  last_bytes_ = tile->bytes(at);
  op.input_blocks.fetch_add(TileBlocks(op.layout.block_units()).count(tile->part, tile->units, scratch_),
                            std::memory_order_relaxed);
  return true;
}

/// Finds what the tile has, and codes it. Values that are packed out of a dense input, or rounded, are in
/// their place in the message then. Returns nothing if they do not fit there.
std::optional<CodedTile> TileWriter::code(const MessageBuilder& message, const Operation& op,
                                          std::uint64_t number, std::uint64_t at) {
  const std::uint64_t units = op.layout.shape_of_tile(number).units();
  const wire::ValueRule rule = op.record.value_rule;
  const bool coded = wire::is_coded(rule);
  const wire::ValueCode code = coded ? wire::ValueCode::as_is : wire::result_code(rule);
  const std::uint64_t begin = wire::values_at(at, wire::value_alignment(op.type(), code)) - at;
  const std::uint64_t beside = begin + bitmap_bytes(units) + sizeof(std::uint16_t) + wire::kTileAlignment;
  if (!coded && message.room() <= beside) return std::nullopt;
  const std::span place(message.next() + begin, coded ? 0 : message.room() - beside);
  auto part = op.tile_input().part(op.layout, number, scratch_,
                                   rule == wire::ValueRule::as_is ? place : scratch_.values());
  if (!part) return std::nullopt;
  CodeRules rules = rules_;
  rules.coded = coded;
  CodedValues values = values_in(code, op.type(), part->count);
  const std::span floats(reinterpret_cast<const float*>(part->values), part->count);
  if (code != wire::ValueCode::as_is) {
    if (values.bytes > place.size()) return std::nullopt;
    narrow(narrow_type(code), floats.data(), floats.size(), reinterpret_cast<std::uint16_t*>(place.data()));
    part->values = place.data();
  } else if (coded) {
    if (const auto shorter = encode_values(floats, part->coding, {coded_.get(), values.bytes})) {
      values = *shorter;
      part->values = coded_.get();
    }
  }
  return code_tile(*part, units, op.type(), values, rules, scratch_);
}

/// Puts a tile into the message. Returns false, and adds nothing, if it does not fit. `region` is the
/// registered memory that the values lie in, if they are the caller's.
bool TileWriter::put(MessageBuilder& message, const CodedTile& tile, std::uint64_t at,
                     const verbs::MemoryRegion* region) {
  const std::uint64_t all = tile.bytes(at), begin = tile.values_at(at), bytes = tile.values.bytes;
  if (all > message.room()) return false;
  std::byte* const to = message.next();
  std::byte* behind = nullptr;
  // What is gathered takes an entry, and what follows it another one.
  if (region != nullptr && tile.values.code == wire::ValueCode::as_is && bytes > 0 &&
      bytes >= message.limits().gather_bytes && message.free_segments() >= 3) {
    if (message.reserve(begin) == nullptr || !message.add(tile.part.values, bytes, region, bytes))
      return false;
    if (all > begin + bytes) behind = message.reserve(all - begin - bytes);
  } else {
    if (message.reserve(all) == nullptr) return false;
    if (bytes > 0 && tile.part.values != to + begin) copy_cold(to + begin, tile.part.values, bytes);
  }
  write_tile(tile, at, scratch_, to, behind);
  return true;
}

}  // namespace nzcl::engine
