#include "runtime/tile/part_sum.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/reduce.h"
#include "runtime/kernels/unit_sum.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_blocks.h"
#include "runtime/tile/tile_codec.h"
#include "runtime/tile/tile_list.h"

namespace nzcl::engine {

using Form = TilePart::Form;

PartSum::PartSum(std::size_t ranks, std::size_t most_value_bytes)
    : ranks_(ranks), scratch_(most_value_bytes) {
  const std::size_t scratches = ranks <= kMergeRanks ? ranks : 1;
  for (std::size_t i = 0; i < scratches; ++i) scratches_.emplace_back(most_value_bytes);
  parts_.reserve(ranks);
  sources_.reserve(ranks);
  pointers_.reserve(ranks);
}

void PartSum::start(DataType type, ReduceOp op, const wire::TileShape& shape) {
  type_ = type;
  op_ = op;
  shape_ = shape;
  parts_.clear();
  if (!keeps_parts()) accumulator_.start(type, op, static_cast<int>(ranks_), shape.elements);
}

void PartSum::add(const TilePart& part) {
  if (keeps_parts()) {
    parts_.push_back(part);
  } else {
    accumulate(part, scratches_.front());
  }
}

const TilePart& PartSum::unite() {
  union_ = {};
  way_ = keeps_parts() ? choose_way() : Way::accumulate;
  switch (way_) {
    case Way::nothing:
      break;
    case Way::whole:
      union_ = {
          .form = Form::all, .units = shape_.units(), .count = shape_.elements, .bitmap = {}, .offsets = {}};
      break;
    case Way::merge:
    case Way::units:
      unite_bitmaps();
      break;
    case Way::lists:
      unite_lists();
      break;
    case Way::accumulate:
      unite_accumulated();
      break;
  }
  return union_;
}

/// Decides how the parts are summed that were kept.
PartSum::Way PartSum::choose_way() const {
  std::size_t held = 0, held_units = 0, whole = 0;
  for (const TilePart& part : parts_) {
    held += part.count;
    held_units += part.units;
    whole += part.form == Form::all;
  }
  if (held == 0) return Way::nothing;
  if (whole == parts_.size()) return Way::whole;
  if (shape_.unit == 1 && held * kMergeShare < shape_.elements) {
    const std::size_t again = held * (std::max<std::size_t>(ranks_, 2) - 2);
    return ranks_ <= kListedRanks && again <= kMostMergedAgain ? Way::lists : Way::accumulate;
  }
  return sums_faster_by_element(shape_.elements, shape_.unit, held_units, parts_.size()) ? Way::merge
                                                                                         : Way::units;
}

void PartSum::unite_lists() {
  lists_.start(type_, op_, static_cast<int>(ranks_));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].count > 0) lists_.add(as_list(parts_[i], scratch_, list_of(i).data()));
  }
  const std::size_t count = lists_.unite();
  std::uint32_t* const offsets = scratch_.list().data();
  lists_.emit(scratch_.values().data(), offsets);
  union_ = listed_part({offsets, count}, 0, 1, nullptr, scratch_.offsets());
}

void PartSum::accumulate(const TilePart& part, TileScratch& scratch) {
  const std::span values(part.values, part.count * element_bytes(type_));
  switch (part.form) {
    case Form::none:
      return;
    case Form::all:
      accumulator_.hold_all();
      accumulator_.add_all(values);
      return;
    case Form::offsets:
      if (shape_.unit > 1) break;
      accumulator_.hold_offsets(part.offsets);
      accumulator_.add_offsets(part.offsets, values);
      return;
    case Form::bitmap:
      break;
  }
  const auto bitmap = element_bitmap(part, shape_, scratch);
  accumulator_.hold_bitmap(bitmap);
  accumulator_.add_bitmap(bitmap, values);
}

void PartSum::unite_accumulated() {
  if (keeps_parts()) {
    accumulator_.start(type_, op_, static_cast<int>(ranks_), shape_.elements);
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) accumulate(parts_[rank], scratches_[rank]);
  }
  union_.units = union_.count = accumulator_.union_count();
  union_.form = Form::bitmap;
  union_.bitmap = accumulator_.union_bitmap();
  if (shape_.unit > 1) {
    const auto units = scratch_.bitmap(words_for(shape_.units()));
    union_.units = TileBlocks(shape_.unit).mark(union_.bitmap, units);
    union_.bitmap = units;
  } else if (union_.count < shape_.elements / kListedShare) {
    union_.offsets = as_offsets(union_, scratch_.offsets());
    union_.form = Form::offsets;
  }
}

void PartSum::unite_bitmaps() {
  const std::size_t units = shape_.units();
  const auto any = scratch_.bitmap(words_for(units));
  std::fill(any.begin(), any.end(), 0);
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    TilePart& part = parts_[rank];
    if (part.form == Form::none) continue;
    if (part.form == Form::all) {
      fill_ones(any, units);
      continue;
    }
    part.bitmap = as_bitmap(part, units, scratches_[rank].bitmap(any.size()));
    part.form = Form::bitmap;
    for (std::size_t w = 0; w < any.size(); ++w) any[w] |= part.bitmap[w];
  }
  union_.form = Form::bitmap;
  union_.bitmap = any;
  union_.units = set_size(any);
  union_.count = shape_.elements_in(union_.units, test_bit(any, units - 1));
}

void PartSum::write(std::byte* to) {
  const int ranks = static_cast<int>(ranks_);
  const std::span values(to, union_.count * element_bytes(type_));
  switch (way_) {
    case Way::nothing:
      break;
    case Way::whole:
      pointers_.clear();
      for (const TilePart& part : parts_) pointers_.push_back(part.values);
      reduce_kernel(type_, op_)(to, pointers_.data(), pointers_.size(), shape_.elements,
                                {.ranks = ranks, .with_zero = false});
      break;
    case Way::merge:
      merge_kernel(type_, op_)(sources(), shape_.elements,
                               scratch_.elements(words_for(shape_.elements)).data(), ranks, values);
      break;
    case Way::units:
      unit_sum_kernel(type_, op_)(
          sources(),
          {.elements = shape_.elements, .unit_elements = shape_.unit, .any = union_.bitmap, .ranks = ranks},
          values);
      break;
    case Way::lists:
      if (to != scratch_.values().data()) std::memcpy(to, scratch_.values().data(), values.size());
      break;
    case Way::accumulate:
      if (union_.form == Form::offsets) {
        accumulator_.emit(union_.offsets, values);
      } else {
        accumulator_.emit(values);
      }
      break;
  }
}

/// The parts that hold anything, with the index sets that the way to sum wants: those of elements, or of
/// units. That of a part which holds all is empty.
std::span<MergeSource> PartSum::sources() {
  sources_.clear();
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    const TilePart& part = parts_[rank];
    if (part.form == Form::none) continue;
    const auto bitmap = part.form == Form::all ? std::span<const std::uint64_t>()
                        : way_ == Way::merge   ? element_bitmap(part, shape_, scratches_[rank])
                                               : part.bitmap;
    sources_.push_back({bitmap.data(), part.values, part.count});
  }
  return sources_;
}

}  // namespace nzcl::engine
