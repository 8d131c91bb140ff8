#include "runtime/tile/tile_codec.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/index_codec.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/units.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/value_codec.h"

namespace nzcl::engine {

using wire::IndexCode;

namespace {

constexpr std::uint64_t kLengthBytes = sizeof(std::uint16_t);

std::uint64_t bytes_of_runs(const TilePart& part) {
  return 4 * (part.form == TilePart::Form::offsets ? set_runs(part.offsets) : set_runs(part.bitmap));
}

/// Returns the bytes of an index set in a given code.
std::uint64_t size_in(IndexCode code, const TilePart& part, std::size_t units, TileScratch& scratch) {
  switch (code) {
    case IndexCode::bitmap:
      return bitmap_bytes(units);
    case IndexCode::offsets:
      return offsets_bytes(part.units);
    case IndexCode::gaps:
      return gaps_bytes(as_offsets(part, scratch.offsets()));
    case IndexCode::runs:
      return bytes_of_runs(part);
    case IndexCode::rice:
      return rice_bytes(as_offsets(part, scratch.offsets()), units);
    case IndexCode::none:
    case IndexCode::all:
    case IndexCode::drawn:
      break;
  }
  return 0;
}

static_assert(kMostSliceElements / 8 <= 0xffff,
              "a code that is not longer than a bitmap has 16 bits for its length");

/// A size with the length field, if the code has one, for comparisons.
std::uint64_t with_length(const CodeChoice& choice) {
  return choice.index_bytes + (wire::has_length(choice.code) ? kLengthBytes : 0);
}

CodeChoice shortest(const TilePart& part, std::size_t units, const CodeRules& rules, TileScratch& scratch) {
  const bool at_any_cost = rules.shortest || rules.coded;
  const bool few = offsets_bytes(part.units) <= bitmap_bytes(units);
  CodeChoice best{few ? IndexCode::offsets : IndexCode::bitmap,
                  few ? offsets_bytes(part.units) : bitmap_bytes(units)};
  if (!at_any_cost && best.index_bytes < kFewIndexBytes) return best;
  const std::uint64_t worth = at_any_cost ? best.index_bytes : best.index_bytes / kWorthReading;
  const CodeChoice runs{IndexCode::runs, bytes_of_runs(part)};
  if (with_length(runs) < worth) best = runs;
  if (!at_any_cost) return best;
  const auto try_code = [&](IndexCode code) {
    const CodeChoice other{code, size_in(code, part, units, scratch)};
    if (with_length(other) < with_length(best)) best = other;
  };
  // A gap takes at least a byte. Rice's code is read bit by bit, which pays where the units are few, or
  // their values small.
  if (part.units + kLengthBytes < with_length(best)) try_code(IndexCode::gaps);
  if (few || rules.coded) try_code(IndexCode::rice);
  return best;
}

void put_descriptor(std::byte* to, const wire::TileDescriptor& descriptor) {
  const std::uint32_t bits = descriptor.encode();
  std::memcpy(to, &bits, sizeof bits);
}

/// Writes the index set, with its length field if its code has one. Returns the number of bytes written.
std::uint64_t write_index(std::byte* to, const CodedTile& tile, TileScratch& scratch) {
  const auto [code, index_bytes] = tile.index;
  if (index_bytes == 0) return 0;
  const std::uint64_t begin = wire::has_length(code) ? kLengthBytes : 0;
  const auto length = static_cast<std::uint16_t>(index_bytes);
  std::memcpy(to, &length, begin);
  const std::span<std::byte> bytes(to + begin, index_bytes);
  const auto offsets = [&] { return as_offsets(tile.part, scratch.offsets()); };
  const auto bitmap = [&] { return as_bitmap(tile.part, tile.units, scratch.bitmap(words_for(tile.units))); };
  switch (code) {
    case IndexCode::bitmap:
      encode_bitmap(bitmap(), bytes);
      break;
    case IndexCode::offsets:
      encode_offsets(offsets(), bytes);
      break;
    case IndexCode::gaps:
      encode_gaps(offsets(), bytes);
      break;
    case IndexCode::runs:
      encode_runs(bitmap(), tile.units, bytes);
      break;
    case IndexCode::rice:
      encode_rice(offsets(), tile.units, bytes);
      break;
    case IndexCode::none:
    case IndexCode::all:
    case IndexCode::drawn:
      assert(false);  // they have no bytes
  }
  return begin + index_bytes;
}

/// Whether the part's number of elements is that of its units. It is not if the tile's last unit is shorter
/// than the others, and counted as if it were not, or the other way round.
bool counts_its_last_unit(const TilePart& part, const wire::TileShape& shape) {
  if (shape.missing() == 0 || part.form == TilePart::Form::none) return true;
  const std::size_t last = shape.units() - 1;
  const bool held =
      part.form == TilePart::Form::all ||
      (part.form == TilePart::Form::bitmap ? test_bit(part.bitmap, last) : part.offsets.back() == last);
  return part.count == shape.elements_in(part.units, held);
}

}  // namespace

CodeChoice choose_code(const TilePart& part, std::size_t units, const CodeRules& rules,
                       TileScratch& scratch) {
  if (part.count == 0) return {};
  if (part.units == units) return {IndexCode::all, 0};
  if (rules.forced) {
    const CodeChoice forced{*rules.forced, size_in(*rules.forced, part, units, scratch)};
    // A tile in its longest form fits a message with a bitmap, so no other code may be longer.
    const bool possible = forced.index_bytes > 0 && with_length(forced) <= bitmap_bytes(units);
    return possible ? forced : CodeChoice{IndexCode::bitmap, bitmap_bytes(units)};
  }
  if (part.drawn) return {IndexCode::drawn, 0};
  return shortest(part, units, rules, scratch);
}

CodedTile code_tile(const TilePart& part, std::size_t units, DataType type, const CodedValues& values,
                    const CodeRules& rules, TileScratch& scratch) {
  return {.part = part,
          .units = units,
          .index = choose_code(part, units, rules, scratch),
          .values = values,
          .alignment = wire::value_alignment(type, values.code)};
}

std::uint64_t CodedTile::bytes(std::uint64_t at) const {
  if (part.count == 0) return sizeof(std::uint32_t);
  return wire::aligned(at + values_at(at) + values.bytes + with_length(index), wire::kTileAlignment) - at;
}

void write_tile(const CodedTile& tile, std::uint64_t at, TileScratch& scratch, std::byte* to,
                std::byte* behind) {
  if (tile.part.count == 0) return write_empty_tiles(to, 1);
  put_descriptor(to, {static_cast<std::uint32_t>(tile.part.count), tile.index.code, tile.values.code,
                      tile.values.parameter});
  const std::uint64_t values = tile.values_at(at), values_end = values + tile.values.bytes;
  std::memset(to + sizeof(std::uint32_t), 0, values - sizeof(std::uint32_t));
  if (behind == nullptr) behind = to + values_end;
  const std::uint64_t index = write_index(behind, tile, scratch);
  std::memset(behind + index, 0, tile.bytes(at) - values_end - index);
}

void write_empty_tiles(std::byte* to, std::uint64_t tiles) { put_descriptor(to, wire::empty_tiles(tiles)); }

std::optional<TilePart> read_part(const wire::Tile& tile, const wire::TileShape& shape, TileScratch& scratch,
                                  std::span<std::uint64_t> bitmap, std::span<const std::uint16_t> drawn) {
  const std::size_t units = shape.units(), held = shape.units_of(tile.count);
  TilePart part{
      .units = held, .count = tile.count, .bitmap = {}, .offsets = {}, .values = tile.values.data()};
  const std::span<std::uint64_t> bits = bitmap.empty() ? scratch.bitmap(words_for(units)) : bitmap;
  bool well_formed = true;
  switch (tile.index_code) {
    case IndexCode::none:
      break;
    case IndexCode::all:
      part.form = TilePart::Form::all;
      break;
    case IndexCode::bitmap:
      part.form = TilePart::Form::bitmap;
      well_formed = decode_bitmap(tile.index, units, held, bits);
      break;
    case IndexCode::runs:
      part.form = TilePart::Form::bitmap;
      well_formed = decode_runs(tile.index, units, held, bits);
      break;
    case IndexCode::offsets:
      part.form = TilePart::Form::offsets;
      well_formed = decode_offsets(tile.index, units, scratch.offsets(held));
      break;
    case IndexCode::gaps:
      part.form = TilePart::Form::offsets;
      well_formed = decode_gaps(tile.index, units, scratch.offsets(held));
      break;
    case IndexCode::rice:
      part.form = TilePart::Form::offsets;
      well_formed = decode_rice(tile.index, units, scratch.offsets(held));
      break;
    case IndexCode::drawn:
      part.form = TilePart::Form::offsets;
      part.drawn = true;
      well_formed = drawn.size() == held;
      break;
  }
  if (!well_formed) return std::nullopt;
  if (part.form == TilePart::Form::bitmap) part.bitmap = bits;
  if (part.form == TilePart::Form::offsets) part.offsets = part.drawn ? drawn : scratch.offsets(held);
  if (!counts_its_last_unit(part, shape)) return std::nullopt;
  if (tile.value_code != wire::ValueCode::as_is && tile.count > 0) {
    const auto values = scratch.values();
    if (!decode_values(tile, {reinterpret_cast<float*>(values.data()), tile.count})) return std::nullopt;
    part.values = values.data();
  }
  return part;
}

std::span<const std::uint64_t> as_bitmap(const TilePart& part, std::size_t units,
                                         std::span<std::uint64_t> to) {
  switch (part.form) {
    case TilePart::Form::bitmap:
      return part.bitmap;
    case TilePart::Form::offsets:
      bitmap_of(part.offsets, to);
      return to;
    case TilePart::Form::all:
      fill_ones(to, units);
      return to;
    case TilePart::Form::none:
      break;
  }
  assert(false);
  return {};
}

std::span<const std::uint64_t> element_bitmap(const TilePart& part, const wire::TileShape& shape,
                                              TileScratch& scratch) {
  const auto units = as_bitmap(part, shape.units(), scratch.bitmap(words_for(shape.units())));
  if (shape.unit == 1) return units;
  const auto elements = scratch.elements(words_for(shape.elements));
  spread_units(units, shape.unit, shape.elements, elements);
  return elements;
}

std::span<const std::uint16_t> as_offsets(const TilePart& part, std::span<std::uint16_t> to) {
  switch (part.form) {
    case TilePart::Form::offsets:
      return part.offsets;
    case TilePart::Form::bitmap:
      return to.first(offsets_of(part.bitmap, to));
    case TilePart::Form::all:
      std::iota(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(part.units), std::uint16_t{0});
      return to.first(part.units);
    case TilePart::Form::none:
      break;
  }
  return {};
}

}  // namespace nzcl::engine
