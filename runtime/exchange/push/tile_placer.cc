#include "runtime/exchange/push/tile_placer.h"

#include <fmt/format.h>

#include "runtime/exchange/contributions/early_result.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Header;

namespace {

/// Whether the tile is in a list, although its operation has none.
bool is_misplaced_list(const Operation& op, const wire::Tile& tile) {
  return tile.listed && op.record.value_rule != wire::ValueRule::as_is;
}

/// Returns why the tiles of a section with this header cannot belong to the transfer, or nullptr.
const char* wrong_with_tiles(const Transfer& t, const Header& header) {
  const Operation& op = *t.up.operation;
  if (!op.layout.tiled()) return "its tensor is not exchanged in tiles";
  if (op.epoch != header.epoch || t.up.slice != header.slice) return "it is of another slice";
  if (header.stream_offset > t.up.tiles || header.tiles > t.up.tiles - header.stream_offset)
    return "its slice has not so many tiles";
  return nullptr;
}

}  // namespace

TilePlacer::TilePlacer(LaneContext& context, wire::Priority priority)
    : context_(context), priority_(priority), scratch_(context.slot_bytes(priority)) {}

bool TilePlacer::refuse(const Uplink& uplink, const std::string& what) {
  context_.fail(ErrorCode::transport, fmt::format("{} {}", context_.name(uplink.member()), what));
  return false;
}

void TilePlacer::note(Uplink& uplink) {
  wire::SectionReader sections(uplink.held.data, context_.slot_bytes(priority_), Direction::down, 0);
  while (const auto section = sections.next()) {
    if (section->header.tiles == 0) continue;
    const Transfer* t = uplink.find(section->header.sequence);
    if (t != nullptr && wrong_with_tiles(*t, section->header) == nullptr) note_section(*t, *section);
  }
}

void TilePlacer::note_section(const Transfer& t, const wire::Section& section) {
  Operation& op = *t.up.operation;
  const SliceLayout& layout = op.layout;
  const std::uint64_t end = section.header.stream_offset + section.header.tiles;
  // A section that cannot be placed yet is offered again and again.
  if (op.tile_output().is_noted(layout.tile_number(t.up.slice, end - 1))) return;
  std::uint64_t at = 0, n = 1;
  for (std::uint64_t i = 0; i < section.header.tiles; i += n) {
    const std::uint64_t number = layout.tile_number(t.up.slice, section.header.stream_offset + i);
    const char* wrong = nullptr;
    const auto tile = wire::read_tile({section.payload, section.header.payload_bytes}, at, op.type(),
                                      layout.shape_of_tile(number), wrong);
    // What is wrong is refused when it is to be placed.
    if (!tile || tile->tiles > section.header.tiles - i || is_misplaced_list(op, *tile)) return;
    at = tile->end;
    n = tile->tiles;
    if (!op.tile_output().needs_note(number)) continue;
    const auto blocks = op.tile_output().count(number, *tile, scratch_);
    if (!blocks) return;
    op.tile_output().note(number, n, *blocks);
  }
}

bool TilePlacer::place(const Uplink& uplink, Transfer& t, const wire::Section& section) {
  const Header& header = section.header;
  const char* wrong = wrong_with_tiles(t, header);
  if (wrong == nullptr && header.tiles == 0) wrong = "its tensor is exchanged in tiles";
  if (wrong == nullptr && t.section_at == 0 && header.stream_offset != t.placed_tiles)
    wrong = "it is not what follows";
  if (wrong != nullptr) {
    return refuse(uplink, fmt::format("sent a result out of order for operation {} slice {}: {}",
                                      header.epoch, header.slice, wrong));
  }
  if (t.section_at == 0) note_section(t, section);
  const trace::Span span(trace::What::result, header.epoch, header.slice);
  while (t.placed_tiles < header.stream_offset + header.tiles) {
    if (!place_next(uplink, t, section)) return false;
  }
  t.section_at = 0;
  return true;
}

/// Places the next tile, or the next ones that are empty. Returns false if it cannot be placed yet, or was
/// refused.
bool TilePlacer::place_next(const Uplink& uplink, Transfer& t, const wire::Section& section) {
  Operation& op = t.operation();
  const std::uint64_t number = op.layout.tile_number(t.up.slice, t.placed_tiles);
  const auto refuse_it = [&](const char* why) {
    return refuse(uplink, fmt::format("sent a tile of operation {} slice {} that can't be: {}",
                                      section.header.epoch, section.header.slice, why));
  };
  const char* wrong = nullptr;
  const auto tile = wire::read_tile({section.payload, section.header.payload_bytes}, t.section_at, op.type(),
                                    op.layout.shape_of_tile(number), wrong);
  if (!tile) return refuse_it(wrong);
  const std::uint64_t left = section.header.stream_offset + section.header.tiles - t.placed_tiles;
  if (tile->tiles > left) return refuse_it("its section has not so many tiles");
  if (tile->listed && tile->tiles > op.layout.listable_tiles(number)) return refuse_it(wire::kShortInList);
  wrong = wrong_with_early_result(t.placed_tiles + tile->tiles <= t.up.sent_tiles);
  if (wrong != nullptr) return refuse_it(wrong);
  if (tile->empty_tiles() > 0) {
    op.tile_output().place_empty(number, tile->tiles);
    t.placed_tiles += tile->tiles;
    t.section_at = tile->end;
    return true;
  }
  if (is_misplaced_list(op, *tile) ||
      (tile->count > 0 && tile->value_code != wire::result_code(op.record.value_rule)))
    return refuse_it("its values are coded in another way than the operation says");
  if (!op.tile_output().placeable(number, context_.config.lane)) return false;
  const auto drawn = op.tile_input().drawn(op.layout, number, *tile, scratch_);
  const auto blocks = tile->listed
                          ? op.tile_output().place_list(number, *tile, context_.config.lane, scratch_)
                          : op.tile_output().place(number, *tile, context_.config.lane, scratch_, drawn);
  if (!blocks) return refuse_it("its index set or its values are malformed");
  op.add(op.union_blocks, *blocks);
  t.placed_tiles += tile->tiles;
  t.section_at = tile->end;
  return true;
}

}  // namespace nzcl::engine
