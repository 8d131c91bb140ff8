#include "runtime/operation/tile_input.h"

#include <algorithm>
#include <utility>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/units.h"

namespace nzcl::engine {
namespace {

/// Sets the bits of all units of the blocks that are set in `blocks`, from block `first` on.
void expand_blocks(std::span<const std::uint64_t> blocks, std::uint64_t first, std::uint64_t units,
                   std::uint64_t block_units, std::span<std::uint64_t> bitmap) {
  if (block_units == 1) {
    std::copy_n(blocks.begin() + static_cast<std::ptrdiff_t>(first / 64), bitmap.size(), bitmap.begin());
    return;
  }
  std::fill(bitmap.begin(), bitmap.end(), 0);
  for (std::uint64_t begin = 0, block = first; begin < units; begin += block_units, ++block) {
    if (!test_bit(blocks, block)) continue;
    const std::uint64_t end = std::min(begin + block_units, units);
    for (std::uint64_t i = begin; i < end; ++i) set_bit(bitmap, i);
  }
}

/// The first element of a slice, and where it ends.
std::pair<std::uint64_t, std::uint64_t> elements_of(const SliceLayout& layout, std::uint64_t slice) {
  const std::uint64_t first = layout.tile_number(slice, 0), last = first + layout.tiles_of(slice) - 1;
  return {layout.tile_begin(first), layout.tile_begin(last) + layout.elements_of_tile(last)};
}

}  // namespace

bool TileInput::ready(const SliceLayout& layout, std::uint64_t slice) const {
  if (kind_ != Kind::source) return true;
  const auto [begin, end] = elements_of(layout, slice);
  return source_->ready(begin, end);
}

void TileInput::make(const SliceLayout& layout, std::uint64_t slice) const {
  if (kind_ != Kind::source) return;
  const auto [begin, end] = elements_of(layout, slice);
  source_->make(begin, end);
}

const verbs::MemoryRegion* TileInput::region() const {
  if (kind_ == Kind::all) return region_;
  if (kind_ == Kind::source) return source_->region();
  return kind_ == Kind::stream ? stream_.region : nullptr;
}

std::span<const std::uint16_t> TileInput::drawn(const SliceLayout& layout, std::uint64_t number,
                                                const wire::Tile& tile, TileScratch& scratch) const {
  if (tile.index_code != wire::IndexCode::drawn || kind_ != Kind::source) return {};
  const std::uint64_t begin = layout.tile_begin(number);
  return source_->drawn(begin, begin + layout.elements_of_tile(number), scratch);
}

std::optional<TilePart> TileInput::part(const SliceLayout& layout, std::uint64_t tile, TileScratch& scratch,
                                        std::span<std::byte> values) const {
  const wire::TileShape shape = layout.shape_of_tile(tile);
  switch (kind_) {
    case Kind::none:
      return TilePart();
    case Kind::all:
      return whole(shape, dense_ + layout.tile_begin(tile) * layout.element_bytes());
    case Kind::stream:
      return of_stream(layout, tile, scratch);
    case Kind::source:
      return source_->part(layout.tile_begin(tile), layout.tile_begin(tile) + shape.elements, scratch);
    case Kind::scan:
    case Kind::bitmap:
      break;
  }
  return packed(layout, tile, scratch, values);
}

TilePart TileInput::whole(const wire::TileShape& shape, const std::byte* values) {
  return {.form = TilePart::Form::all,
          .units = shape.units(),
          .count = shape.elements,
          .bitmap = {},
          .offsets = {},
          .values = values};
}

std::uint64_t TileInput::empty_tiles(std::uint64_t tile, std::uint64_t most) const {
  if (kind_ == Kind::none) return most;
  if (kind_ != Kind::stream) return 0;
  if (stream_.units.before(tile) == stream_.units.size()) return most;
  return std::min(stream_.units.tile_from(tile) - tile, most);
}

ElementList TileInput::list(const SliceLayout& layout, std::uint64_t tile, std::uint64_t tiles,
                            StreamUnits::Range units, std::uint32_t* to) const {
  if (units.count == 0) return {};
  stream_.units.list(tile, tiles, units, to);
  return {.offsets = {to, units.count}, .values = values_from(layout, units.place)};
}

ElementList TileInput::kept_list(const SliceLayout& layout, std::uint64_t tile, std::uint64_t tiles,
                                 std::uint32_t* to) const {
  if (!is_kept_whole()) return list(layout, tile, tiles, to);
  const auto [place, count] = stream_.units.of_tiles(tile, tiles);
  return {.offsets = {stream_.units.whole() + place, count}, .values = values_from(layout, place)};
}

TilePart TileInput::of_stream(const SliceLayout& layout, std::uint64_t tile, TileScratch& scratch) const {
  const wire::TileShape shape = layout.shape_of_tile(tile);
  const std::size_t first = stream_.units.before(tile), units = stream_.units.before(tile + 1) - first;
  if (units == 0) return {};
  // Only the tensor's last unit may be shorter, and no values lie behind it.
  const std::byte* const values = stream_.values + first * shape.unit * layout.element_bytes();
  if (units == shape.units()) return whole(shape, values);
  const auto offsets = stream_.units.of_tile(tile, first, scratch.offsets(units));
  return {.form = TilePart::Form::offsets,
          .units = units,
          .count = shape.elements_in(units, offsets.back() == shape.units() - 1),
          .bitmap = {},
          .offsets = offsets,
          .values = values};
}

/// Packs what is there out of the dense tensor.
std::optional<TilePart> TileInput::packed(const SliceLayout& layout, std::uint64_t tile, TileScratch& scratch,
                                          std::span<std::byte> values) const {
  const wire::TileShape shape = layout.shape_of_tile(tile);
  const std::uint64_t units = shape.units(), each = layout.element_bytes();
  const std::span dense(dense_ + layout.tile_begin(tile) * each, shape.elements * each);
  const auto bitmap = scratch.bitmap(words_for(units));
  TilePart part;
  if (kind_ == Kind::scan) {
    part.count = shape.unit == 1 ? scan_and_pack(dense, each, bitmap, values)
                                 : scan_and_pack_units(dense, each, shape.unit, bitmap, values);
    if (part.count == kTooDense) return std::nullopt;
    part.units = shape.units_of(part.count);
  } else {
    expand_blocks(bits_, tile * layout.tile_blocks(), units, layout.block_units(), bitmap);
    part.units = set_size(bitmap);
    part.count = shape.elements_in(part.units, test_bit(bitmap, units - 1));
    if (part.count * each > values.size()) return std::nullopt;
    pack_units(dense, each, shape.unit, bitmap, values.first(part.count * each),
               scratch.elements(words_for(shape.elements)));
  }
  if (part.units == 0) return part;
  part.form = part.units == units ? TilePart::Form::all : TilePart::Form::bitmap;
  part.bitmap = bitmap;
  part.values = values.data();
  return part;
}

}  // namespace nzcl::engine
