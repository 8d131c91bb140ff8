#include "runtime/exchange/contributions/tile_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/kernels/index_codec.h"
#include "runtime/kernels/narrow.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_blocks.h"
#include "runtime/tile/tile_list.h"
#include "runtime/tile/value_codec.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {
namespace {

void zero(std::byte* at, std::uint64_t bytes) { std::memset(at, 0, bytes); }

}  // namespace

TileWriter::TileWriter(const LaneContext& context, wire::Priority priority)
    : rules_{context.config.index_code, context.config.short_codes},
      ranks_(static_cast<std::uint64_t>(context.config.members.workers)),
      most_list_bytes_(std::min(kFullMessageBytes, context.slot_bytes(priority) - wire::kMaxOverhead)),
      scratch_(context.slot_bytes(priority)),
      coded_(new std::byte[context.slot_bytes(priority)]) {}

std::optional<WrittenSection> TileWriter::write(MessageBuilder& message, Contribution& c,
                                                std::uint16_t credit) {
  Operation& op = *c.operation;
  const trace::Span span(trace::What::push, op.epoch, c.slice);
  const std::uint64_t begin = message.bytes(), staged = message.staged();
  wire::Header header;
  std::byte* const header_at =
      begin_section(message, c, header, {.bitmap = c.sent_tiles == 0, .data = true, .credit = credit});
  if (header_at == nullptr || !write_payload(message, c, header)) {
    message.take_back_to(staged);
    return std::nullopt;
  }
  std::memcpy(header_at, &header, sizeof header);
  return WrittenSection{header_at, message.bytes() - begin};
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
  const std::uint64_t tile = op.layout.tile_number(c.slice, c.sent_tiles);
  const std::uint64_t empty =
      op.tile_input().empty_tiles(tile, std::min(c.tiles - c.sent_tiles, wire::kMostEmptyTiles));
  if (empty > 0) return add_empty_tiles(message, empty) ? empty : 0;
  const std::uint64_t listed = listed_tiles(c);
  if (listed == 0) return add_tile(message, op, tile, payload_begin) ? 1 : 0;
  return add_list(message, op, tile, listed, message.bytes() - payload_begin) ? listed : 0;
}

/// Returns how many tiles from the next one on are best told in one list, if any. Lists have no short code,
/// so they are for where bytes cost little. Ranks with about as many elements begin and end their lists with
/// the same tiles, because these are a power of two that divides the number of those before.
std::uint64_t TileWriter::listed_tiles(const Contribution& c) const {
  const Operation& op = *c.operation;
  const std::uint64_t tile = op.layout.tile_number(c.slice, c.sent_tiles), left = c.tiles - c.sent_tiles;
  if (rules_.shortest || rules_.forced || ranks_ > kListedRanks || op.layout.unit_elements() > 1 ||
      op.record.value_rule != wire::ValueRule::as_is || op.tile_input().listed_tiles(1) == 0 ||
      !lists_pay(op, tile, 1))
    return 0;
  std::uint64_t tiles = 1;
  while (2 * tiles <= left && c.sent_tiles % (2 * tiles) == 0 && lists_pay(op, tile, 2 * tiles)) tiles *= 2;
  return tiles;
}

/// Whether these tiles have so few elements that merging their lists is fast, and that they fit a message
/// which is worth its cost. A list of one tile is shorter than the tile with all elements.
bool TileWriter::lists_pay(const Operation& op, std::uint64_t tile, std::uint64_t tiles) const {
  const std::uint64_t units = op.tile_input().units_in(tile, tiles),
                      elements = tiles * op.layout.tile_elements();
  return units * list_steps(ranks_) * kElementsPerListStep <= elements &&
         elements <= wire::kMostListElements &&
         (tiles == 1 || list_bytes(0, op.layout.element_bytes(), units) <= most_list_bytes_);
}

/// Returns false, and adds nothing, if the list does not fit.
bool TileWriter::add_list(MessageBuilder& message, Operation& op, std::uint64_t tile, std::uint64_t tiles,
                          std::uint64_t at) {
  const std::uint64_t each = op.layout.element_bytes();
  const std::size_t count = op.tile_input().units_in(tile, tiles);
  std::byte* const to = message.reserve(list_bytes(at, each, count));
  if (to == nullptr) return false;
  const ListRoom room = begin_list(to, at, each, tiles, count);
  const ElementList list = op.tile_input().list(op.layout, tile, tiles, room.offsets.data());
  copy_cold(room.values.data(), list.values, room.values.size());
  op.add(op.input_blocks, count);  // blocks are single elements
  return true;
}

/// Returns false, and adds nothing, if they do not fit.
bool TileWriter::add_empty_tiles(MessageBuilder& message, std::uint64_t tiles) {
  std::byte* const to = message.reserve(kEmptyTilesBytes);
  if (to != nullptr) write_empty_tiles(to, tiles);
  return to != nullptr;
}

/// Returns false, and adds nothing, if the tile does not fit.
bool TileWriter::add_tile(MessageBuilder& message, Operation& op, std::uint64_t tile,
                          std::uint64_t payload_begin) {
  const SliceLayout& layout = op.layout;
  const std::uint64_t units = layout.shape_of_tile(tile).units();
  const std::uint64_t at = message.bytes() - payload_begin;
  // Reading a dense tile to find out that it does not fit would be a waste. Its size is about that of the one
  // before it.
  const bool alone = at == 0 && payload_begin <= wire::kMaxOverhead;
  if (!alone && message.room() < last_bytes_ + last_bytes_ / 8) return false;
  if (wire::is_coded(op.record.value_rule)) return add_coded_tile(message, op, tile, at);
  const wire::ValueCode code = wire::result_code(op.record.value_rule);
  const std::uint64_t each = wire::value_bytes(op.type(), code);
  const std::uint64_t before = wire::values_at(at, each) - at;
  const std::uint64_t beside = before + bitmap_bytes(units) + sizeof(std::uint16_t) + wire::kTileAlignment;
  if (message.room() <= beside) return false;

  const bool narrower = code != wire::ValueCode::as_is;
  const auto packed =
      narrower ? scratch_.values() : std::span(message.next() + before, message.room() - beside);
  const auto part = op.tile_input().part(layout, tile, scratch_, packed);
  if (!part) return false;
  const CodeChoice choice = choose_code(*part, units, rules_, scratch_);
  const std::uint64_t bytes = tile_bytes(at, choice, each, part->count * each);
  if (bytes > message.room()) return false;

  const std::uint64_t value_bytes = part->count * each;
  const std::uint64_t behind = part->count == 0 ? 0 : bytes - before - value_bytes;
  std::byte* const begin = message.next();
  std::byte* index = nullptr;
  if (part->count == 0 || narrower) {
    if (message.reserve(bytes) == nullptr) return false;
  }
  if (part->count == 0) {
    // It has neither values nor an index set.
  } else if (narrower) {
    narrow(code == wire::ValueCode::float16 ? DataType::float16 : DataType::bfloat16,
           reinterpret_cast<const float*>(part->values), part->count,
           reinterpret_cast<std::uint16_t*>(begin + before));
    index = begin + before + value_bytes;
  } else {
    const auto at_values =
        place_values(message, *part, op.tile_input().region(), before, value_bytes, behind);
    if (!at_values) return false;
    index = *at_values;
  }
  write_descriptor(begin, choice, part->count, code);
  if (part->count > 0) zero(begin + sizeof(std::uint32_t), before - sizeof(std::uint32_t));
  if (choice.index_bytes > 0) {
    const std::uint64_t written = write_index(index, *part, units, choice, scratch_);
    zero(index + written, behind - written);
  } else if (index != nullptr) {
    zero(index, behind);
  }
  last_bytes_ = bytes;
  op.input_blocks.fetch_add(TileBlocks(layout.block_units()).count(*part, units, scratch_),
                            std::memory_order_relaxed);
  return true;
}

/// Adds a tile of a compressed gradient, whose values are coded. They are always copied, because they are
/// few.
bool TileWriter::add_coded_tile(MessageBuilder& message, Operation& op, std::uint64_t tile,
                                std::uint64_t at) {
  const std::uint64_t elements = op.layout.elements_of_tile(tile);
  const auto part = op.tile_input().part(op.layout, tile, scratch_, scratch_.values());
  if (!part) return false;
  CodeRules rules = rules_;
  rules.coded = true;
  const CodeChoice choice = choose_code(*part, elements, rules, scratch_);
  const std::span values(reinterpret_cast<const float*>(part->values), part->count);
  const auto coded = encode_values(values, part->coding, {coded_.get(), values.size_bytes()});
  const CodedValues as_sent = coded.value_or(CodedValues{.bytes = values.size_bytes()});
  const std::uint64_t alignment = wire::value_alignment(op.type(), as_sent.code);
  const std::uint64_t bytes = tile_bytes(at, choice, alignment, as_sent.bytes);

  std::byte* const begin = message.reserve(bytes);
  if (begin == nullptr) return false;
  write_descriptor(begin, choice, part->count, as_sent.code, as_sent.parameter);
  if (part->count > 0) {
    std::byte* to = begin + (wire::values_at(at, alignment) - at);
    std::memcpy(to, coded ? coded_.get() : part->values, as_sent.bytes);
    to += as_sent.bytes;
    if (choice.index_bytes > 0) to += write_index(to, *part, elements, choice, scratch_);
    zero(to, static_cast<std::uint64_t>(begin + bytes - to));
  }
  last_bytes_ = bytes;
  op.add(op.input_blocks, part->count);  // blocks are single elements
  return true;
}

/// Puts the values into the message, with `before` bytes in front of them and `behind` bytes behind. Returns
/// where these lie, which is nowhere if there are none; or nothing if the message has no room.
std::optional<std::byte*> TileWriter::place_values(MessageBuilder& message, const TilePart& part,
                                                   const verbs::MemoryRegion* region, std::uint64_t before,
                                                   std::uint64_t bytes, std::uint64_t behind) {
  const std::uint64_t all = before + bytes + behind;
  if (message.room() < all) return std::nullopt;
  // What is gathered takes an entry, and what follows it another one.
  const bool gathers =
      region != nullptr && bytes >= message.limits().gather_bytes && message.free_segments() >= 3;
  if (gathers) {
    if (message.reserve(before) == nullptr || !message.add(part.values, bytes, region, bytes))
      return std::nullopt;
    return behind == 0 ? nullptr : message.reserve(behind);
  }
  std::byte* const begin = message.reserve(all);
  if (begin == nullptr) return std::nullopt;
  std::byte* const values = begin + before;
  if (part.values != values) copy_cold(values, part.values, bytes);
  return values + bytes;
}

}  // namespace nzcl::engine
