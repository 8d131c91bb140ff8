#include "runtime/exchange/merging/tile_merge.h"

#include <cassert>
#include <cstdint>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/narrow.h"
#include "runtime/kernels/reduce.h"
#include "runtime/plan/partial_type.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {
namespace {

/// What a merge is of: two partial sums.
constexpr int kParts = 2;

MergeSource source_of(const TilePart& part, std::size_t elements, TileScratch& scratch) {
  if (part.form == TilePart::Form::all)
    return {.bitmap = nullptr, .values = part.values, .count = part.count};
  const auto bitmap = as_bitmap(part, elements, scratch.bitmap(words_for(elements)));
  return {.bitmap = bitmap.data(), .values = part.values, .count = part.count};
}

}  // namespace

TilePart TileMerge::merge(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                          const TilePart& b, TileScratch& b_scratch, std::size_t elements,
                          std::span<std::byte> values) {
  const std::size_t held = a.count + b.count;
  if (held == 0) return {};
  if (held * kMergeShare < elements && held <= kMostListed)
    return merge_lists(type, op, a, a_scratch, b, b_scratch, values);
  if (a.count == elements && b.count == elements) {
    const std::byte* const both[kParts] = {a.values, b.values};
    reduce_kernel(type, op)(values.data(), both, kParts, elements, {.ranks = kParts, .with_zero = false});
    return {
        .form = TilePart::Form::all, .count = elements, .bitmap = {}, .offsets = {}, .values = values.data()};
  }
  return merge_bitmaps(type, op, a, a_scratch, b, b_scratch, elements, values);
}

TilePart TileMerge::merge_lists(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                                const TilePart& b, TileScratch& b_scratch, std::span<std::byte> values) {
  std::size_t lists = 0;
  if (a.count > 0) lists_[lists++] = {as_offsets(a, a_scratch.offsets()), a.values};
  if (b.count > 0) lists_[lists++] = {as_offsets(b, b_scratch.offsets()), b.values};
  list_sum_.sum(type, op, kParts, std::span(lists_).first(lists));
  list_sum_.emit(values);
  const auto offsets = list_sum_.offsets();
  return {.form = TilePart::Form::offsets,
          .count = offsets.size(),
          .bitmap = {},
          .offsets = offsets,
          .values = values.data()};
}

TilePart TileMerge::merge_bitmaps(DataType type, ReduceOp op, const TilePart& a, TileScratch& a_scratch,
                                  const TilePart& b, TileScratch& b_scratch, std::size_t elements,
                                  std::span<std::byte> values) {
  std::size_t sources = 0;
  if (a.count > 0) sources_[sources++] = source_of(a, elements, a_scratch);
  if (b.count > 0) sources_[sources++] = source_of(b, elements, b_scratch);
  const auto bitmap = scratch_.bitmap(words_for(elements));
  const std::size_t count = merge_kernel(type, op)(std::span(sources_).first(sources), elements,
                                                   bitmap.data(), {.ranks = kParts, .packed = values});
  return {.form = count == elements ? TilePart::Form::all : TilePart::Form::bitmap,
          .count = count,
          .bitmap = bitmap,
          .offsets = {},
          .values = values.data()};
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
