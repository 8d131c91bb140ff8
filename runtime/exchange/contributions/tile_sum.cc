#include "runtime/exchange/contributions/tile_sum.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/narrow.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/reduce.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_blocks.h"

namespace nzcl::engine {
namespace {

std::vector<int> numbers(int count) {
  std::vector<int> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

DataType narrow_type(wire::ValueCode code) {
  return code == wire::ValueCode::float16 ? DataType::float16 : DataType::bfloat16;
}

}  // namespace

TileSum::TileSum(LaneContext& context, wire::Priority priority, Intake& intake)
    : context_(context),
      intake_(intake),
      rules_{context.config.index_code, context.config.short_codes},
      ranks_(numbers(context.config.members.workers)),
      arrived_(ranks_.size()),
      taken_(ranks_.size()),
      parts_(ranks_.size()),
      result_scratch_(context.slot_bytes(priority)),
      rounding_scratch_(context.slot_bytes(priority)),
      list_offsets_(new std::uint32_t[kMostListed]),
      most_bytes_(context.slot_bytes(priority)) {
  const std::size_t scratches = ranks_.size() <= kMergeRanks ? ranks_.size() : 1;
  for (std::size_t i = 0; i < scratches; ++i) scratches_.emplace_back(context.slot_bytes(priority));
  sources_.reserve(ranks_.size());
  pointers_.reserve(ranks_.size());
  lists_.reserve(ranks_.size());
}

void TileSum::start(IncomingSlice& s) {
  slice_ = &s;
  summed_ = 0;
  tiles_ = s.layout->tiles_of(s.slice);
  coder_ = wire::has_coded_results(rule()) ? s.local->result_coder() : nullptr;
  assert(coder_ != nullptr || !wire::has_coded_results(rule()));  // a rank that asks for it brings one
  alignment_ = wire::value_alignment(type(), code());
  ready_ = false;
}

bool TileSum::drop() {
  if (!intake_.drop_tiles(*slice_)) return false;
  summed_ = tiles_;
  return true;
}

bool TileSum::ready() {
  if (ready_) return true;
  for (const int rank : ranks_) {
    if (!intake_.has_tile(*slice_, rank)) return false;
  }
  number_ = slice_->layout->tile_number(slice_->slice, summed_);
  shape_ = slice_->layout->shape_of_tile(number_);
  units_ = shape_.units();
  if (!read_arrived()) return false;
  empty_ = empty_tiles();
  listed_ = empty_ > 0 ? 0 : listed_tiles();
  ready_ = empty_ > 0 || (listed_ > 0 ? sum_several(listed_) : collect());
  if (empty_ > 0) result_ = {}, choice_ = {}, std::ranges::fill(taken_, 0);
  return ready_;
}

std::uint64_t TileSum::empty_tiles() const {
  std::uint64_t empty = std::min(tiles_ - summed_, wire::kMostEmptyTiles);
  for (const int rank : ranks_) {
    empty = context_.is_self(rank) ? slice_->local->tile_input().empty_tiles(number_, empty)
                                   : std::min(empty, arrived_[static_cast<std::size_t>(rank)].empty_tiles());
  }
  return empty;
}

bool TileSum::read_arrived() {
  for (const int rank : ranks_) {
    if (context_.is_self(rank)) continue;
    const auto tile = intake_.tile(*slice_, rank, shape_);
    if (!tile) return false;
    arrived_[static_cast<std::size_t>(rank)] = *tile;
  }
  return true;
}

/// Returns how many tiles from the next one on are best summed as lists, all at once: none, if a rank tells
/// of them in another way, or if they have too many elements.
std::uint64_t TileSum::listed_tiles() const {
  if (ranks_.size() > kListedRanks || shape_.unit > 1 || rule() != wire::ValueRule::as_is) return 0;
  std::uint64_t tiles = std::min(tiles_ - summed_, wire::kMostListElements / slice_->layout->tile_elements());
  for (const int rank : ranks_) {
    if (context_.is_self(rank)) {
      tiles = slice_->local->tile_input().listed_tiles(tiles);
    } else {
      const wire::Tile& tile = arrived_[static_cast<std::size_t>(rank)];
      tiles = tile.listed || tile.count == 0 ? std::min(tiles, tile.tiles) : 0;
    }
  }
  while (tiles > 0 && !lists_pay(tiles)) tiles /= 2;
  return tiles;
}

/// Whether these tiles' elements are so few that they can be summed as lists, and that this is fast.
bool TileSum::lists_pay(std::uint64_t tiles) const {
  std::uint64_t held = 0, steps = 0;
  for (const int rank : ranks_) {
    const std::size_t listed = listed_of(rank, tiles);
    if (held > 0 && listed > 0) steps += held + listed;
    held += listed;
  }
  const std::uint64_t elements = tiles * slice_->layout->tile_elements();
  return held > 0 && held <= most_listed() && steps * kElementsPerListStep <= elements;
}

/// The most elements that are summed as lists: as many as fit a message, if no two ranks have the same one.
std::size_t TileSum::most_listed() const {
  const std::uint64_t each = element_bytes(type());
  const std::uint64_t around = wire::kMaxOverhead + list_bytes(0, each, 0) + sizeof(std::uint32_t);
  return std::min(kMostListed, (most_bytes_ - around) / (each + sizeof(std::uint32_t)));
}

/// Returns how many elements the rank has listed of the next tiles.
std::size_t TileSum::listed_of(int rank, std::uint64_t tiles) const {
  if (context_.is_self(rank)) return slice_->local->tile_input().units_in(number_, tiles);
  const wire::Tile& tile = arrived_[static_cast<std::size_t>(rank)];
  if (!tile.listed || tiles == tile.tiles) return tile.count;
  return listed_below(tile, intake_.list_begin(*slice_, rank) + tiles * slice_->layout->tile_elements());
}

/// Sums so many tiles as lists. Returns false after a failure.
bool TileSum::sum_several(std::uint64_t tiles) {
  const std::uint64_t last = number_ + tiles - 1, elements = (tiles - 1) * slice_->layout->tile_elements() +
                                                             slice_->layout->elements_of_tile(last);
  std::uint32_t* to = list_offsets_.get();
  lists_.clear();
  for (const int rank : ranks_) {
    const wire::Tile& tile = arrived_[static_cast<std::size_t>(rank)];
    std::size_t& count = taken_[static_cast<std::size_t>(rank)];
    count = listed_of(rank, tiles);
    if (count == 0) continue;
    // A peer that writes to its list meanwhile may let it have more than lists_pay() has counted.
    if (count > static_cast<std::size_t>(list_offsets_.get() + most_listed() - to) ||
        (!context_.is_self(rank) &&
         !read_list(tile, count, intake_.list_begin(*slice_, rank), elements, to))) {
      intake_.refuse_tile(*slice_, rank, "its index set is malformed");
      return false;
    }
    if (context_.is_self(rank)) {
      lists_.push_back(slice_->local->tile_input().list(slice_->local->layout, number_, tiles, to));
      slice_->local->add(slice_->local->input_blocks, count);  // blocks are single elements
    } else {
      lists_.push_back({.offsets = {to, count}, .values = tile.values.data()});
    }
    to += count;
  }
  list_sum_.sum(type(), op(), static_cast<int>(ranks_.size()), lists_);
  return true;
}

/// Returns what a rank holds of the next tile, or nothing after a failure.
std::optional<TilePart> TileSum::part_of(int rank, TileScratch& scratch) {
  if (context_.is_self(rank)) {
    const auto part =
        slice_->local->tile_input().part(slice_->local->layout, number_, scratch, scratch.values());
    assert(part);  // the scratch has room for all values
    slice_->local->input_blocks.fetch_add(
        TileBlocks(slice_->layout->block_units()).count(*part, units_, scratch), std::memory_order_relaxed);
    all_drawn_ &= part->drawn;
    const bool as_sent = code() == wire::ValueCode::as_is || wire::is_coded(rule());
    return as_sent ? *part : rounded(*part);
  }
  const wire::Tile& tile = arrived_[static_cast<std::size_t>(rank)];
  std::span<const std::uint16_t> drawn;
  if (slice_->local != nullptr)
    drawn = slice_->local->tile_input().drawn(*slice_->layout, number_, tile, scratch);
  auto part = tile.listed ? read_listed_tile(tile, taken_[static_cast<std::size_t>(rank)],
                                             intake_.list_begin(*slice_, rank), shape_, scratch)
                          : read_part(tile, shape_, scratch, {}, drawn);
  all_drawn_ &= tile.index_code == wire::IndexCode::drawn;
  if (!part) intake_.refuse_tile(*slice_, rank, "its index set or its values are malformed");
  return part;
}

/// Rounds this rank's own values as the other ranks have rounded theirs before sending them. So the sum does
/// not depend on which rank owns the slice.
TilePart TileSum::rounded(const TilePart& part) {
  const DataType narrower = narrow_type(code());
  auto* const halves = reinterpret_cast<std::uint16_t*>(result_scratch_.values().data());
  auto* const floats = reinterpret_cast<float*>(rounding_scratch_.values().data());
  narrow(narrower, reinterpret_cast<const float*>(part.values), part.count, halves);
  widen(narrower, halves, part.count, floats);
  TilePart same = part;
  same.values = rounding_scratch_.values().data();
  return same;
}

/// Finds the union of the ranks' index sets, and its code. Returns false after a failure.
bool TileSum::collect() {
  all_drawn_ = true;
  std::uint64_t held = 0, whole = 0;  // elements that remote ranks hold, and ranks that hold all of them
  for (const int rank : ranks_) {
    if (context_.is_self(rank)) continue;
    const std::size_t taken = listed_of(rank, 1);
    taken_[static_cast<std::size_t>(rank)] = taken;
    held += taken;
    whole += taken == shape_.elements;
  }
  if (slice_->local != nullptr) ++whole;  // it may be, and then there is nothing else to find out first
  const bool few_ranks = ranks_.size() <= kMergeRanks;
  const bool blocks = shape_.unit > 1;
  const bool few_elements = !blocks && whole < ranks_.size() && held * kMergeShare < shape_.elements;
  if (!few_ranks || (few_elements && ranks_.size() > kListedRanks)) return accumulate();
  held = 0;
  const std::size_t again = std::max<std::size_t>(ranks_.size(), 2) - 2;
  for (const int rank : ranks_) {
    const auto part = part_of(rank, scratches_[static_cast<std::size_t>(rank)]);
    if (!part) return false;
    parts_[static_cast<std::size_t>(rank)] = *part;
    held += part->count;
  }
  if (!few_elements) {
    unite();
  } else if (held <= kMostListed && held * again <= kMostMergedAgain) {
    sum_lists();
  } else {
    start_accumulation();
    for (const TilePart& part : parts_) accumulate(part);
    end_accumulation();
  }
  return true;
}

/// A result has the elements that all ranks draw if all of them have sent these, and no more.
void TileSum::choose_result_code() {
  CodeRules rules = rules_;
  rules.coded = coder_ != nullptr;  // most of a coded result is its index set
  result_.drawn = all_drawn_;
  choice_ = choose_code(result_, units_, rules, result_scratch_);
}

/// Sums the parts as lists. Precondition: they have at most kMostListed elements together.
void TileSum::sum_lists() {
  way_ = Way::lists;
  lists_.clear();
  std::uint32_t* to = list_offsets_.get();
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    if (parts_[rank].count == 0) continue;
    lists_.push_back(as_list(parts_[rank], scratches_[rank], to));
    to += lists_.back().offsets.size();
  }
  list_sum_.sum(type(), op(), static_cast<int>(ranks_.size()), lists_);
  list_sum_.emit(rounding_scratch_.values(), list_offsets_.get());
  result_ = listed_part({list_offsets_.get(), list_sum_.size()}, 0, nullptr, result_scratch_.offsets());
  choose_result_code();
}

/// Adds the values of all ranks to the accumulator, rank after rank.
bool TileSum::accumulate() {
  start_accumulation();
  for (const int rank : ranks_) {
    const auto part = part_of(rank, scratches_.front());
    if (!part) return false;
    accumulate(*part);
  }
  end_accumulation();
  return true;
}

void TileSum::start_accumulation() {
  way_ = Way::accumulate;
  accumulator_.start(type(), op(), static_cast<int>(ranks_.size()), shape_.elements);
}

void TileSum::accumulate(const TilePart& part) {
  const std::span values(part.values, part.count * element_bytes(type()));
  switch (part.form) {
    case TilePart::Form::none:
      return;
    case TilePart::Form::all:
      accumulator_.hold_all();
      accumulator_.add_all(values);
      return;
    case TilePart::Form::offsets:
      if (shape_.unit > 1) break;
      accumulator_.hold_offsets(part.offsets);
      accumulator_.add_offsets(part.offsets, values);
      return;
    case TilePart::Form::bitmap:
      break;
  }
  const auto bitmap = element_bitmap(part, shape_, scratches_.front());
  accumulator_.hold_bitmap(bitmap);
  accumulator_.add_bitmap(bitmap, values);
}

void TileSum::end_accumulation() {
  result_ = {.form = TilePart::Form::bitmap,
             .units = accumulator_.union_count(),
             .count = accumulator_.union_count(),
             .bitmap = accumulator_.union_bitmap(),
             .offsets = {},
             .values = nullptr};
  if (shape_.unit > 1) {
    const auto units = result_scratch_.bitmap(words_for(units_));
    result_.units = TileBlocks(shape_.unit).mark(result_.bitmap, units);
    result_.bitmap = units;
  } else if (result_.count < shape_.elements / kListedShare) {
    result_.offsets = as_offsets(result_, result_scratch_.offsets());
    result_.form = TilePart::Form::offsets;
  }
  choose_result_code();
}

/// Unites the index sets of parts_, and decides how they are summed.
void TileSum::unite() {
  const auto bitmap = result_scratch_.bitmap(words_for(units_));
  std::fill(bitmap.begin(), bitmap.end(), 0);
  std::size_t whole = 0, held = 0;
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    TilePart& part = parts_[rank];
    whole += part.form == TilePart::Form::all;
    held += part.units;
    if (part.form == TilePart::Form::none) continue;
    if (part.form == TilePart::Form::offsets) {
      part.bitmap = as_bitmap(part, units_, scratches_[rank].bitmap(bitmap.size()));
      part.form = TilePart::Form::bitmap;
    }
    if (part.form == TilePart::Form::all) {
      fill_ones(bitmap, units_);
    } else {
      for (std::size_t w = 0; w < bitmap.size(); ++w) bitmap[w] |= part.bitmap[w];
    }
  }
  const std::size_t units = set_size(bitmap);
  result_ = {.form = TilePart::Form::bitmap,
             .units = units,
             .count = shape_.elements_in(units, test_bit(bitmap, units_ - 1)),
             .bitmap = bitmap,
             .offsets = {},
             .values = nullptr};
  choose_result_code();
  way_ = whole == parts_.size()                                                      ? Way::whole
         : result_.units == 0                                                        ? Way::nothing
         : sums_faster_by_element(shape_.elements, shape_.unit, held, parts_.size()) ? Way::merge
                                                                                     : Way::units;
}

std::uint64_t TileSum::result_value_bytes() const {
  return coder_ != nullptr ? coder_->bytes(result_.count) : result_.count * wire::value_bytes(type(), code());
}

void TileSum::sum_into(std::byte* to, std::uint64_t at) {
  const std::uint64_t begin = wire::values_at(at, alignment_) - at;
  const std::uint64_t values = result_value_bytes();
  const std::uint64_t end = bytes(at);
  if (empty_ > 0) {
    write_empty_tiles(to, empty_);
  } else if (listed_ > 0) {
    write_list(to, at);
  } else if (result_.count == 0) {
    write_descriptor(to, choice_, 0, wire::ValueCode::as_is);
    write_values({});
  } else {
    write_descriptor(to, choice_, result_.count, code(), coder_ != nullptr ? coder_->parameter() : 0);
    std::memset(to + sizeof(std::uint32_t), 0, begin - sizeof(std::uint32_t));
    if (coder_ != nullptr) {
      write_coded_values(to + begin);
    } else if (code() == wire::ValueCode::as_is) {
      write_values({to + begin, values});
    } else {
      write_values(result_scratch_.values());
      narrow(narrow_type(code()), reinterpret_cast<const float*>(result_scratch_.values().data()),
             result_.count, reinterpret_cast<std::uint16_t*>(to + begin));
    }
    std::byte* index = to + begin + values;
    if (choice_.index_bytes > 0) index += write_index(index, result_, units_, choice_, result_scratch_);
    std::memset(index, 0, static_cast<std::size_t>(to + end - index));
  }
  consume();
  summed_ += tiles();
  ready_ = false;
}

void TileSum::write_list(std::byte* to, std::uint64_t at) {
  const ListRoom room = begin_list(to, at, element_bytes(type()), listed_, list_sum_.size());
  list_sum_.emit(room.values, room.offsets.data());
}

/// Sums in fp32, and has this rank's coder write what travels and keep what that loses.
void TileSum::write_coded_values(std::byte* to) {
  const auto floats = [&](TileScratch& scratch) {
    return std::span(reinterpret_cast<float*>(scratch.values().data()), result_.count);
  };
  write_values(result_scratch_.values());
  coder_->code({.begin = slice_->layout->tile_begin(number_),
                .offsets = as_offsets(result_, result_scratch_.offsets()),
                .sums = floats(result_scratch_),
                .spare = floats(rounding_scratch_)},
               to);
}

/// Writes the sums of the elements in the union, packed. `values` has room for them.
void TileSum::write_values(std::span<std::byte> values) {
  const int ranks = static_cast<int>(ranks_.size());
  SumOutput to{.ranks = ranks, .packed = values};
  switch (way_) {
    case Way::nothing:
      break;
    case Way::whole:
      pointers_.clear();
      for (const TilePart& part : parts_) pointers_.push_back(part.values);
      reduce_kernel(type(), op())(values.data(), pointers_.data(), pointers_.size(), shape_.elements,
                                  {.ranks = ranks, .with_zero = false});
      break;
    case Way::merge:
      collect_sources();
      merge_kernel(type(), op())(sources_, shape_.elements,
                                 result_scratch_.elements(words_for(shape_.elements)).data(), to);
      break;
    case Way::units:
      collect_sources();
      unit_sum_kernel(type(), op())(
          sources_,
          {.elements = shape_.elements, .unit_elements = shape_.unit, .any = result_.bitmap, .ranks = ranks},
          values);
      break;
    case Way::lists:
      std::copy_n(rounding_scratch_.values().data(), result_.count * element_bytes(type()), values.data());
      break;
    case Way::accumulate:
      if (result_.form == TilePart::Form::offsets) {
        accumulator_.emit(result_.offsets, to);
      } else {
        accumulator_.emit(to);
      }
      break;
  }
}

/// Lists the parts of the ranks that hold anything, with the index sets that the way to sum wants.
void TileSum::collect_sources() {
  sources_.clear();
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    const TilePart& part = parts_[rank];
    if (part.form == TilePart::Form::none) continue;
    const auto bitmap = part.form == TilePart::Form::all ? std::span<const std::uint64_t>()
                        : way_ == Way::merge             ? element_bitmap(part, shape_, scratches_[rank])
                                                         : part.bitmap;
    sources_.push_back({bitmap.data(), part.values, part.count});
  }
}

/// Gives the contributions' slots back, as far as they have been summed.
void TileSum::consume() {
  for (const int rank : ranks_) {
    if (!context_.is_self(rank))
      intake_.consume_tiles(rank, arrived_[static_cast<std::size_t>(rank)], tiles(),
                            taken_[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace nzcl::engine
