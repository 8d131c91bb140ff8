#include "runtime/exchange/merging/tile_merge.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/narrow.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/reduce.h"
#include "runtime/kernels/unit_sum.h"
#include "runtime/plan/partial_type.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {
namespace {

/// What a merge is of: two partial sums.
constexpr int kParts = 2;

/// Gives the part its index set as a bitmap, unless it holds all or nothing.
void make_bitmap(TilePart& part, const wire::TileShape& shape, TileScratch& scratch) {
  if (part.form != TilePart::Form::offsets) return;
  part.bitmap = as_bitmap(part, shape.units(), scratch.bitmap(words_for(shape.units())));
  part.form = TilePart::Form::bitmap;
}

/// The bitmap of the part's elements. It is empty if it holds all or nothing.
std::span<const std::uint64_t> bitmap_or_all(const TilePart& part, const wire::TileShape& shape,
                                             TileScratch& scratch) {
  return part.form == TilePart::Form::bitmap ? element_bitmap(part, shape, scratch)
                                             : std::span<const std::uint64_t>();
}

void add_to_union(const TilePart& part, const wire::TileShape& shape, std::span<std::uint64_t> any) {
  if (part.form == TilePart::Form::all) fill_ones(any, shape.units());
  if (part.form != TilePart::Form::bitmap) return;
  for (std::size_t w = 0; w < any.size(); ++w) any[w] |= part.bitmap[w];
}

TilePart merged(std::span<const std::uint64_t> bitmap, std::size_t units, std::size_t count,
                const wire::TileShape& shape, std::span<std::byte> values) {
  return {.form = units == shape.units() ? TilePart::Form::all : TilePart::Form::bitmap,
          .units = units,
          .count = count,
          .bitmap = bitmap,
          .offsets = {},
          .values = values.data()};
}

}  // namespace

TilePart TileMerge::merge(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                          const TilePart& b, TileScratch& b_scratch, const wire::TileShape& shape,
                          std::span<std::byte> values) {
  const std::size_t held = a.count + b.count;
  if (held == 0) return {};
  if (shape.unit == 1 && held * kMergeShare < shape.elements && held <= kMostListed)
    return merge_lists(type, op, a, a_scratch, b, b_scratch, values);
  if (a.count == shape.elements && b.count == shape.elements) {
    const std::byte* const both[kParts] = {a.values, b.values};
    reduce_kernel(type, op)(values.data(), both, kParts, shape.elements,
                            {.ranks = kParts, .with_zero = false});
    return {.form = TilePart::Form::all,
            .units = shape.units(),
            .count = shape.elements,
            .bitmap = {},
            .offsets = {},
            .values = values.data()};
  }
  TilePart own[kParts] = {a, b};
  make_bitmap(own[0], shape, a_scratch);
  make_bitmap(own[1], shape, b_scratch);
  return shape.unit == 1 ? merge_elements(type, op, own[0], own[1], shape, values)
                         : merge_units(type, op, own[0], a_scratch, own[1], b_scratch, shape, values);
}

TilePart TileMerge::merge_lists(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                                const TilePart& b, TileScratch& b_scratch, std::span<std::byte> values) {
  std::size_t lists = 0;
  if (a.count > 0) lists_[lists++] = as_list(a, a_scratch, list_offsets_.get());
  if (b.count > 0) lists_[lists++] = as_list(b, b_scratch, list_offsets_.get() + a.count);
  list_sum_.sum(type, op, kParts, std::span(lists_).first(lists));
  list_sum_.emit(values, list_offsets_.get());
  return listed_part({list_offsets_.get(), list_sum_.size()}, 0, values.data(), scratch_.offsets());
}

TilePart TileMerge::merge_elements(DataType type, ReduceOp op, const TilePart& a, const TilePart& b,
                                   const wire::TileShape& shape, std::span<std::byte> values) {
  const std::size_t sources = collect_sources(a, a.bitmap, b, b.bitmap);
  const auto bitmap = scratch_.bitmap(words_for(shape.elements));
  const std::size_t count = merge_kernel(type, op)(std::span(sources_).first(sources), shape.elements,
                                                   bitmap.data(), {.ranks = kParts, .packed = values});
  return merged(bitmap, count, count, shape, values);
}

TilePart TileMerge::merge_units(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                                const TilePart& b, TileScratch& b_scratch, const wire::TileShape& shape,
                                std::span<std::byte> values) {
  const auto any = scratch_.bitmap(words_for(shape.units()));
  std::fill(any.begin(), any.end(), 0);
  add_to_union(a, shape, any);
  add_to_union(b, shape, any);
  const std::size_t units = set_size(any);
  const std::size_t count = shape.elements_in(units, test_bit(any, shape.units() - 1));
  if (sums_faster_by_element(shape.elements, shape.unit, a.units + b.units, kParts)) {
    const std::size_t sources =
        collect_sources(a, bitmap_or_all(a, shape, a_scratch), b, bitmap_or_all(b, shape, b_scratch));
    merge_kernel(type, op)(std::span(sources_).first(sources), shape.elements,
                           scratch_.elements(words_for(shape.elements)).data(),
                           {.ranks = kParts, .packed = values});
  } else {
    const std::size_t sources = collect_sources(a, a.bitmap, b, b.bitmap);
    unit_sum_kernel(type, op)(
        std::span(sources_).first(sources),
        {.elements = shape.elements, .unit_elements = shape.unit, .any = any, .ranks = kParts},
        values.first(count * element_bytes(type)));
  }
  return merged(any, units, count, shape, values);
}

/// Lists the parts that hold anything. The bitmap of one that holds all is empty.
std::size_t TileMerge::collect_sources(const TilePart& a, std::span<const std::uint64_t> a_bitmap,
                                       const TilePart& b, std::span<const std::uint64_t> b_bitmap) {
  std::size_t sources = 0;
  if (a.count > 0) sources_[sources++] = {a_bitmap.data(), a.values, a.count};
  if (b.count > 0) sources_[sources++] = {b_bitmap.data(), b.values, b.count};
  return sources;
}

void widen_values(DataType type, DataType partial, const std::byte* values, std::size_t count,
                  std::byte* to) noexcept {
  if (partial == DataType::float32) {
    widen(type, reinterpret_cast<const std::uint16_t*>(values), count, reinterpret_cast<float*>(to));
    return;
  }
  assert(type == DataType::uint8 && partial == DataType::int32);
  for (std::size_t i = 0; i < count; ++i) {
    const auto wide = static_cast<std::int32_t>(values[i]);
    std::memcpy(to + i * sizeof wide, &wide, sizeof wide);
  }
}

void finish_values(DataType type, ReduceOp op, int ranks, std::byte* sums, std::size_t count,
                   std::byte* to) noexcept {
  if (count == 0) return;
  const DataType partial = partial_type(type, op);
  if (op == ReduceOp::avg) {
    const std::byte* const sum = sums;
    reduce_kernel(partial, op)(sums, &sum, 1, count, {.ranks = ranks, .with_zero = false});
  }
  if (partial == type) {
    if (to != sums) std::memcpy(to, sums, count * element_bytes(type));
  } else if (partial == DataType::float32) {
    narrow(type, reinterpret_cast<const float*>(sums), count, reinterpret_cast<std::uint16_t*>(to));
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      std::int32_t wide = 0;
      std::memcpy(&wide, sums + i * sizeof wide, sizeof wide);
      to[i] = static_cast<std::byte>(wide);
    }
  }
}

}  // namespace nzcl::engine
