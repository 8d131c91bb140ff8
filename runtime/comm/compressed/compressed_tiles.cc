#include "runtime/comm/compressed/compressed_tiles.h"

#include <algorithm>
#include <cassert>

namespace nzcl::comm {

using engine::TilePart;
using engine::ValueCoding;
using wire::ValueCode;

namespace {

std::size_t slice_of(std::uint64_t element) { return static_cast<std::size_t>(element / kMostSliceElements); }

/// Offsets in a slice, as offsets in the tile that begins with element `begin`.
std::span<const std::uint16_t> offsets_in_tile(std::span<const std::uint16_t> offsets, std::uint64_t begin,
                                               engine::TileScratch& scratch) {
  const std::uint64_t inside = begin % kMostSliceElements;
  const auto to = scratch.offsets(offsets.size());
  std::ranges::transform(offsets, to.begin(),
                         [&](std::uint16_t offset) { return static_cast<std::uint16_t>(offset - inside); });
  return to;
}

}  // namespace

void CompressedTiles::make(std::uint64_t begin, std::uint64_t end) {
  for (std::size_t slice = slice_of(begin); slice <= slice_of(end - 1); ++slice) step_->make(slice);
}

bool CompressedTiles::ready(std::uint64_t begin, std::uint64_t end) const {
  for (std::size_t slice = slice_of(begin); slice <= slice_of(end - 1); ++slice) {
    if (!step_->ready(slice)) return false;
  }
  return true;
}

/// How the values from number `first` to `last` of a slice can be coded.
ValueCoding CompressedTiles::coding_of(std::span<const float> scales, std::size_t first,
                                       std::size_t last) const {
  if (std::holds_alternative<Ternary>(values_)) return {.code = ValueCode::signs};
  if (const auto* const narrow = std::get_if<Narrow>(&values_))
    return {.code = narrow->type == DataType::float16 ? ValueCode::float16 : ValueCode::bfloat16};
  const auto* const qsgd = std::get_if<Qsgd>(&values_);
  if (qsgd == nullptr || first == last) return {};
  const std::size_t bucket = first / qsgd->bucket, end = (last + qsgd->bucket - 1) / qsgd->bucket;
  return {.code = ValueCode::levels,
          .bits = qsgd->bits,
          .bucket = qsgd->bucket,
          .skipped = first % qsgd->bucket,
          .scales = scales.subspan(bucket, end - bucket)};
}

CompressedTiles::Range CompressedTiles::range_of(std::span<const std::uint16_t> offsets, std::uint64_t begin,
                                                 std::uint64_t end) {
  const std::uint64_t inside = begin % kMostSliceElements;
  const auto place_of = [&](std::uint64_t offset) {
    return static_cast<std::size_t>(std::ranges::lower_bound(offsets, offset) - offsets.begin());
  };
  return {place_of(inside), place_of(inside + (end - begin))};
}

TilePart CompressedTiles::part(std::uint64_t begin, std::uint64_t end, engine::TileScratch& scratch) const {
  assert(slice_of(begin) == slice_of(end - 1));
  const compress::SliceContent content = step_->content(slice_of(begin));
  const auto [first, last] = range_of(content.offsets, begin, end);
  TilePart part;
  part.units = part.count = last - first;  // single elements
  part.drawn = draws_ && step_->has_the_draw(slice_of(begin));
  if (part.count == 0) return part;
  part.values = reinterpret_cast<const std::byte*>(content.values.data() + first);
  part.coding = coding_of(content.scales, first, last);
  part.form = TilePart::Form::all;
  if (part.count == end - begin) return part;
  part.offsets = offsets_in_tile(content.offsets.subspan(first, part.count), begin, scratch);
  part.form = TilePart::Form::offsets;
  return part;
}

std::span<const std::uint16_t> CompressedTiles::drawn(std::uint64_t begin, std::uint64_t end,
                                                      engine::TileScratch& scratch) const {
  const std::size_t slice = slice_of(begin);
  if (!draws_ || !step_->ready(slice)) return {};
  if (!step_->has_the_draw(slice)) {
    const auto inside = static_cast<std::uint32_t>(begin % kMostSliceElements);
    const auto until = inside + static_cast<std::uint32_t>(end - begin);
    return scratch.offsets(step_->draw(slice, inside, until, scratch.offsets()));
  }
  const auto offsets = step_->content(slice).offsets;
  const auto [first, last] = range_of(offsets, begin, end);
  return offsets_in_tile(offsets.subspan(first, last - first), begin, scratch);
}

}  // namespace nzcl::comm
