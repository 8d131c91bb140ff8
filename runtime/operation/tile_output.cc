#include "runtime/operation/tile_output.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"
#include "runtime/base/divide.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/units.h"
#include "runtime/operation/index_memory.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_list.h"

namespace nzcl::engine {
namespace {

/// The type in which indices are kept for a caller who has no memory for them.
IndexType kept_type(const SliceLayout& layout) {
  constexpr std::uint64_t kMostShort = std::numeric_limits<std::uint32_t>::max();
  return layout.blocks() <= kMostShort ? IndexType::uint32 : IndexType::int64;
}

SpareMemory::Piece take_memory(std::size_t bytes, SpareMemory* spare) {
  return spare != nullptr ? spare->take(bytes) : SpareMemory::make(bytes);
}

/// Appends `count` indices that were written to `indices`.
void append_indices(const IndexBuffer& indices, std::uint64_t count, std::vector<std::int64_t>& to) {
  const auto append = [&](const auto* from) { to.insert(to.end(), from, from + count); };
  switch (indices.type()) {
    case IndexType::int32:
      return append(static_cast<const std::int32_t*>(indices.data()));
    case IndexType::uint32:
      return append(static_cast<const std::uint32_t*>(indices.data()));
    case IndexType::int64:
      return append(static_cast<const std::int64_t*>(indices.data()));
  }
}

}  // namespace

TileOutput::TileOutput(const SliceLayout& layout, std::byte* dense, bool in_place)
    : layout_(layout),
      blocks_of_(layout.block_units()),
      base_(dense),
      packed_(false),
      in_place_(in_place),
      dense_to_(!in_place && layout.tensor_bytes() >= kLeastStreamedOutput ? StoreTo::memory
                                                                           : StoreTo::cache),
      // calloc() gives pages that are zero and take no memory until they are written.
      words_(static_cast<std::uint64_t*>(
          std::calloc(layout.tiles() * layout.tile_blocks() / 64, sizeof(std::uint64_t)))) {
  if (!words_) throw std::bad_alloc();
}

TileOutput::TileOutput(const SliceLayout& layout, std::byte* packed, std::uint64_t capacity,
                       IndexBuffer indices, PackedOverflow* overflow, int lanes, SpareMemory* spare)
    : layout_(layout),
      blocks_of_(layout.block_units()),
      base_(packed),
      packed_(true),
      in_place_(false),
      capacity_(capacity),
      most_blocks_(std::min(capacity, layout.blocks())),
      kept_(indices.data() != nullptr ? SpareMemory::Piece()
                                      : take_memory(most_blocks_ * index_bytes(kept_type(layout)), spare)),
      indices_(indices.data() != nullptr ? indices : IndexBuffer(kept_.get(), kept_type(layout))),
      overflow_(overflow),
      positions_(layout.slices(), lanes),
      progress_(layout.slices()) {}

void TileOutput::note(std::uint64_t tile, std::uint64_t tiles, std::uint64_t blocks) {
  const std::uint64_t slice = layout_.slice_of_tile(tile);
  Progress& p = progress_[slice];
  p.noted_tiles += tiles;
  p.noted_blocks += blocks;
  if (p.noted_tiles == layout_.tiles_of(slice)) positions_.note(slice, p.noted_blocks);
}

std::span<std::uint64_t> TileOutput::words_of(std::uint64_t tile) {
  const std::uint64_t words = layout_.tile_blocks() / 64;
  const std::uint64_t blocks =
      std::min(layout_.tile_blocks(), layout_.blocks() - tile * layout_.tile_blocks());
  return {words_.get() + tile * words, words_for(blocks)};
}

std::optional<std::uint64_t> TileOutput::count(std::uint64_t tile, const wire::Tile& bytes,
                                               TileScratch& scratch) const {
  if (bytes.listed) return bytes.count;  // where there are lists, units are blocks
  const wire::TileShape shape = layout_.shape_of_tile(tile);
  if (layout_.block_units() == 1) return shape.units_of(bytes.count);
  const auto part = read_part(bytes, shape, scratch);
  if (!part) return std::nullopt;
  return blocks_of_.count(*part, shape.units(), scratch);
}

std::optional<std::uint64_t> TileOutput::place(std::uint64_t tile, const wire::Tile& bytes, int lane,
                                               TileScratch& scratch, std::span<const std::uint16_t> drawn) {
  // A bitmap of units that are blocks is read to its own place.
  const bool direct = !packed_ && layout_.block_units() == 1;
  const auto part = read_part(bytes, layout_.shape_of_tile(tile), scratch,
                              direct ? words_of(tile) : std::span<std::uint64_t>(), drawn);
  if (!part) return std::nullopt;
  return place(tile, *part, lane, scratch);
}

void TileOutput::place_empty(std::uint64_t tile, std::uint64_t tiles) {
  if (packed_ || in_place_) return;
  const std::uint64_t last = tile + tiles - 1, begin = layout_.tile_begin(tile),
                      end = layout_.tile_begin(last) + layout_.elements_of_tile(last);
  zero_cold(base_ + begin * layout_.element_bytes(), (end - begin) * layout_.element_bytes());
}

std::optional<std::uint64_t> TileOutput::place_list(std::uint64_t tile, const wire::Tile& list, int lane,
                                                    TileScratch& scratch) {
  const auto numbers = scratch.list().first(list.count);
  // What is checked is a copy, and that is what is placed.
  if (!read_list(list, list.count, 0, layout_.units_of_tiles(tile, list.tiles), numbers.data()))
    return std::nullopt;
  place_list(tile, list.tiles, {.offsets = numbers, .values = list.values.data()}, lane, scratch);
  return list.count;
}

void TileOutput::place_list(std::uint64_t tile, std::uint64_t tiles, const ElementList& list, int lane,
                            TileScratch& scratch) {
  if (list.offsets.empty()) return place_empty(tile, tiles);
  if (fits_at_once(tile, list.offsets.size(), lane)) {
    put_list(tile, list.offsets, list.values, lane);
  } else {
    place_in_tiles(tile, tiles, list.offsets, list.values, lane, scratch);
  }
}

/// Where the next blocks of the tile's slice, which is placeable, begin in a packed output.
std::uint64_t TileOutput::position_of(std::uint64_t tile, int lane) {
  const std::uint64_t slice = layout_.slice_of_tile(tile);
  return *positions_.before(slice, lane) + progress_[slice].placed_blocks;
}

/// Whether a packed output has room for all of these blocks.
bool TileOutput::fits_at_once(std::uint64_t tile, std::size_t blocks, int lane) {
  return packed_ && position_of(tile, lane) + blocks <= most_blocks_;
}

/// Places the blocks with these numbers, for which there is room, in a packed output.
void TileOutput::put_list(std::uint64_t tile, std::span<const std::uint32_t> numbers, const std::byte* values,
                          int lane) {
  const std::uint64_t position = position_of(tile, lane);
  write_indices(numbers, tile * layout_.tile_blocks(), indices_, position, where(position));
  put_values(position, {values, numbers.size() * layout_.block_bytes()});
  progress_[layout_.slice_of_tile(tile)].placed_blocks += numbers.size();
}

/// Places the blocks with these numbers tile by tile.
void TileOutput::place_in_tiles(std::uint64_t tile, std::uint64_t tiles,
                                std::span<const std::uint32_t> numbers, const std::byte* values, int lane,
                                TileScratch& scratch) {
  const std::uint32_t *next = numbers.data(), *const end = next + numbers.size();
  for (std::uint64_t t = 0; t < tiles; ++t) {
    const std::uint64_t first = t * layout_.tile_units();
    const std::uint32_t* const behind = std::lower_bound(next, end, first + layout_.tile_units());
    const TilePart part =
        listed_part({next, behind}, first, layout_.unit_elements(), values, scratch.offsets());
    place(tile + t, part, lane, scratch);
    values += part.count * layout_.element_bytes();
    next = behind;
  }
}

std::uint64_t TileOutput::place_dense(std::uint64_t tile, const TilePart& part, TileScratch& scratch) {
  const wire::TileShape shape = layout_.shape_of_tile(tile);
  const std::uint64_t units = shape.units(), each = layout_.element_bytes();
  const std::span<std::uint64_t> words = words_of(tile);
  const std::span dense(base_ + layout_.tile_begin(tile) * each, shape.elements * each);
  const std::span values(part.values, part.count * each);
  switch (part.form) {
    case TilePart::Form::none:
      if (!in_place_) zero_cold(dense.data(), dense.size());
      return 0;
    case TilePart::Form::all:
      copy_cold(dense.data(), part.values, dense.size());
      fill_ones(words, blocks_of_.blocks(units));
      return set_size(words);
    case TilePart::Form::offsets:
      if (in_place_ && part.units * kFewElements < shape.elements) {
        scatter_units(values, shape.unit * each, part.offsets, dense);
        for (const std::uint16_t offset : part.offsets) set_bit(words, blocks_of_.block_of(offset));
        return blocks_of_.count(part, units, scratch);
      }
      break;
    case TilePart::Form::bitmap:
      break;
  }
  const bool direct = layout_.block_units() == 1;
  const auto bitmap = as_bitmap(part, units, direct ? words : scratch.bitmap(words_for(units)));
  const auto elements = scratch.elements(words_for(shape.elements));
  // In place, all blocks that no rank has are zero already, because this rank has not got them either.
  if (in_place_ && direct) {
    fill_in_units(values, each, shape.unit, bitmap, dense, elements);
  } else {
    expand_units(values, each, shape.unit, bitmap, dense, elements, dense_to_);
  }
  if (!direct) return blocks_of_.mark(bitmap, words);
  if (bitmap.data() != words.data()) std::copy(bitmap.begin(), bitmap.end(), words.begin());
  return part.units;
}

std::uint64_t TileOutput::place_packed(std::uint64_t tile, const TilePart& part, int lane,
                                       TileScratch& scratch) {
  if (part.units == 0) return 0;
  const std::uint64_t position = position_of(tile, lane);
  const bool units_are_blocks = layout_.block_units() == 1;
  const std::uint64_t blocks =
      units_are_blocks ? part.units : blocks_of_.count(part, layout_.shape_of_tile(tile).units(), scratch);
  const auto offsets = as_offsets(part, scratch.offsets());
  if (units_are_blocks) {
    put_indices(tile, position, offsets);
    put_values(position, {part.values, part.count * layout_.element_bytes()});
  } else {
    place_whole_blocks(tile, offsets, part.values, position);
  }
  progress_[layout_.slice_of_tile(tile)].placed_blocks += blocks;
  return blocks;
}

/// Places a tile that tells of single elements, where blocks have several.
void TileOutput::place_whole_blocks(std::uint64_t tile, std::span<const std::uint16_t> offsets,
                                    const std::byte* values, std::uint64_t position) {
  for (std::size_t i = 0; i < offsets.size(); ++position) {
    const auto number = static_cast<std::uint16_t>(blocks_of_.block_of(offsets[i]));
    put_indices(tile, position, {&number, 1});
    i += place_block(tile, number, offsets.subspan(i), values + i * layout_.element_bytes(), position);
  }
}

/// Places one block, which begins with the first of these elements, and returns how many of them it has.
/// Those of its elements that are not in the union are zero.
std::size_t TileOutput::place_block(std::uint64_t tile, std::uint64_t number,
                                    std::span<const std::uint16_t> offsets, const std::byte* values,
                                    std::uint64_t position) {
  const std::uint64_t each = layout_.element_bytes(), begin = number * layout_.block_elements(),
                      elements = std::min(layout_.block_elements(), layout_.elements_of_tile(tile) - begin);
  // The offsets ascend, so a block that has as many of them as elements has each of its elements.
  if (offsets.size() >= elements && offsets[elements - 1] == begin + elements - 1) {
    put_values(position, {values, elements * each});
    return elements;
  }
  std::array<std::byte, kMostTiledBlockBytes> whole;
  std::memset(whole.data(), 0, elements * each);
  std::size_t n = 0;
  for (; n < offsets.size() && offsets[n] < begin + elements; ++n)
    std::memcpy(whole.data() + (offsets[n] - begin) * each, values + n * each, each);
  put_values(position, {whole.data(), elements * each});
  return n;
}

/// Writes the indices of blocks as far as there is room for them. Others go to the overflow.
void TileOutput::put_indices(std::uint64_t tile, std::uint64_t position,
                             std::span<const std::uint16_t> blocks) {
  const std::uint64_t fit =
      position < most_blocks_ ? std::min<std::uint64_t>(blocks.size(), most_blocks_ - position) : 0;
  const std::uint64_t first = tile * layout_.tile_blocks();
  write_indices(blocks.first(fit), first, indices_, position, where(position));
  if (fit < blocks.size() && overflow_ != nullptr)
    overflow_->write_indices(position + fit - most_blocks_, first, blocks.subspan(fit));
}

/// Writes values of blocks from `position` on.
void TileOutput::put_values(std::uint64_t position, std::span<const std::byte> values) {
  const std::uint64_t begin = position * layout_.block_bytes(), end = capacity_ * layout_.block_bytes();
  const std::uint64_t fit = begin < end ? std::min<std::uint64_t>(values.size(), end - begin) : 0;
  write_values(values.first(fit), base_ + begin, where(position));
  if (fit < values.size() && overflow_ != nullptr) overflow_->write(begin + fit - end, values.subspan(fit));
}

std::span<const std::uint64_t> TileOutput::union_bitmap() const {
  return {words_.get(), words_for(layout_.blocks())};
}

std::vector<std::int64_t> TileOutput::packed_indices() const {
  std::uint64_t blocks = 0;
  for (const Progress& slice : progress_) blocks += slice.placed_blocks;
  std::vector<std::int64_t> indices;
  indices.reserve(blocks);
  append_indices(indices_, std::min(blocks, most_blocks_), indices);
  if (overflow_ != nullptr)
    indices.insert(indices.end(), overflow_->indices().begin(), overflow_->indices().end());
  return indices;
}

}  // namespace nzcl::engine
