#include "runtime/operation/tile_input.h"

#include <algorithm>
#include <utility>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/offsets.h"

namespace nzcl::engine {
namespace {

/// Sets the bits of all elements of the blocks that are set in `blocks`, from block `first` on.
void expand_blocks(std::span<const std::uint64_t> blocks, std::uint64_t first, std::uint64_t elements,
                   std::uint64_t block_elements, std::span<std::uint64_t> bitmap) {
  if (block_elements == 1) {
    std::copy_n(blocks.begin() + static_cast<std::ptrdiff_t>(first / 64), bitmap.size(), bitmap.begin());
    return;
  }
  std::fill(bitmap.begin(), bitmap.end(), 0);
  for (std::uint64_t begin = 0, block = first; begin < elements; begin += block_elements, ++block) {
    if (!test_bit(blocks, block)) continue;
    const std::uint64_t end = std::min(begin + block_elements, elements);
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
  const std::uint64_t elements = layout.elements_of_tile(tile), each = layout.element_bytes();
  TilePart part;
  switch (kind_) {
    case Kind::none:
      return part;
    case Kind::all:
      part.form = TilePart::Form::all;
      part.count = elements;
      part.values = dense_ + layout.tile_begin(tile) * each;
      return part;
    case Kind::stream: {
      const std::uint64_t first = stream_.first[tile];
      part.count = stream_.first[tile + 1] - first;
      if (part.count == 0) return part;
      part.form = part.count == elements ? TilePart::Form::all : TilePart::Form::offsets;
      part.offsets = {stream_.offsets.get() + first, part.count};
      part.values = stream_.values + first * each;
      return part;
    }
    case Kind::source: {
      const std::uint64_t begin = layout.tile_begin(tile);
      return source_->part(begin, begin + elements, scratch);
    }
    case Kind::scan:
    case Kind::bitmap:
      break;
  }
  const auto bitmap = scratch.bitmap(words_for(elements));
  const std::span dense(dense_ + layout.tile_begin(tile) * each, elements * each);
  if (kind_ == Kind::scan) {
    part.count = scan_and_pack(dense, each, bitmap, values);
    if (part.count == kTooDense) return std::nullopt;
  } else {
    expand_blocks(bits_, tile * layout.tile_blocks(), elements, layout.block_elements(), bitmap);
    part.count = set_size(bitmap);
    if (part.count * each > values.size()) return std::nullopt;
    pack(dense, each, bitmap, values.first(part.count * each));
  }
  if (part.count == 0) return part;
  part.form = part.count == elements ? TilePart::Form::all : TilePart::Form::bitmap;
  part.bitmap = bitmap;
  part.values = values.data();
  return part;
}

}  // namespace nzcl::engine
