#include "runtime/exchange/contributions/list_rule.h"

#include <algorithm>
#include <bit>

#include "runtime/base/cold_memory.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_list.h"

namespace nzcl::engine {

ListRule::ListRule(const LaneContext& context, wire::Priority priority)
    : possible_(!context.config.short_codes && !context.config.index_code &&
                static_cast<std::size_t>(context.config.members.workers) <= kListedRanks),
      ranks_(static_cast<std::uint64_t>(context.config.members.workers)),
      slot_bytes_(context.slot_bytes(priority)),
      most_bytes_(std::min(kFullMessageBytes, slot_bytes_ - wire::kMaxOverhead)) {}

OwnList ListRule::list(const Operation& op, std::uint64_t slice, std::uint64_t place) const {
  const SliceLayout& layout = op.layout;
  const TileInput& input = op.tile_input();
  OwnList list{.tile = layout.tile_number(slice, place), .tiles = 0, .units = {}};
  const std::uint64_t left = std::min({layout.tiles_of(slice) - place, layout.listable_tiles(list.tile),
                                       wire::kMostListTiles, wire::kMostListUnits / layout.tile_units()});
  if (!possible_ || op.record.value_rule != wire::ValueRule::as_is || input.listed_tiles(left) == 0)
    return {};
  list.units.place = input.units_before(list.tile);
  // All of the slice, or as many tiles as a power of two that divides the place of the first, so that the
  // lists of all ranks end at the same tiles.
  const std::uint64_t aligned = place & (~place + 1);
  list.tiles = place == 0 ? left : std::bit_floor(std::min(left, aligned));
  while (list.tiles > 0) {
    list.units.count = input.units_before(list.tile + list.tiles) - list.units.place;
    if (pays(layout, list)) return list;
    list.tiles = std::bit_ceil(list.tiles) / 2;
  }
  return {};
}

/// Whether these tiles have so few units that merging their lists is fast, and that they fit a message which
/// is worth its cost. A list of one tile is shorter than the tile with all elements.
bool ListRule::pays(const SliceLayout& layout, const OwnList& list) const {
  return list.units.count * list_steps(ranks_) * layout.units_per_list_step() <=
             list.tiles * layout.tile_units() &&
         (list.tiles == 1 || list.bytes(layout, 0) <= most_bytes_);
}

std::size_t ListRule::most_units(std::uint64_t element_bytes, std::uint64_t unit_elements) const {
  const std::uint64_t around =
      wire::kMaxOverhead + list_bytes(0, element_bytes, unit_elements, 0) + sizeof(std::uint32_t);
  return std::min(kMostListed,
                  (slot_bytes_ - around) / (unit_elements * element_bytes + sizeof(std::uint32_t)));
}

std::uint64_t OwnList::bytes(const SliceLayout& layout, std::uint64_t at) const {
  return list_bytes(at, layout.element_bytes(), layout.unit_elements(), units.count);
}

void OwnList::write(Operation& op, std::uint64_t at, std::byte* to) const {
  const std::uint64_t each = op.layout.element_bytes(), unit = op.layout.unit_elements();
  const ElementList list =
      op.tile_input().list(op.layout, tile, tiles, units, begin_list(to, at, each, unit, tiles, units.count));
  copy_cold(list_values(to, at, each), list.values, units.count * unit * each);
  op.add(op.input_blocks, units.count);  // where there are lists, units are blocks
}

}  // namespace nzcl::engine
