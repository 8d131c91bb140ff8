#include "runtime/exchange/contributions/tile_sum.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/kernels/narrow.h"
#include "runtime/plan/tuning.h"
#include "runtime/tile/tile_blocks.h"

namespace nzcl::engine {
namespace {

std::vector<int> numbers(int count) {
  std::vector<int> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

}  // namespace

TileSum::TileSum(LaneContext& context, wire::Priority priority, Intake& intake)
    : context_(context),
      intake_(intake),
      rules_{context.config.index_code, context.config.short_codes},
      lists_(context, priority),
      ranks_(numbers(context.config.members.workers)),
      arrived_(ranks_.size()),
      taken_(ranks_.size()),
      sum_(ranks_.size(), context.slot_bytes(priority)),
      most_bytes_(context.slot_bytes(priority)),
      spare_(new std::byte[most_bytes_]) {}

void TileSum::start(IncomingSlice& s) {
  slice_ = &s;
  summed_ = 0;
  tiles_ = s.layout->tiles_of(s.slice);
  coder_ = wire::has_coded_results(rule()) ? s.local->result_coder() : nullptr;
  assert(coder_ != nullptr || !wire::has_coded_results(rule()));  // a rank that asks for it brings one
  ready_ = false;
  here_ = 0;
}

bool TileSum::drop() {
  if (!intake_.drop_tiles(*slice_)) return false;
  summed_ = tiles_;
  return true;
}

bool TileSum::ready() {
  if (ready_) return true;
  // A tile that is here stays here until it is summed, so only the others are looked for again.
  for (; here_ < ranks_.size(); ++here_) {
    if (!intake_.has_tile(*slice_, ranks_[here_])) return false;
  }
  number_ = slice_->layout->tile_number(slice_->slice, summed_);
  shape_ = slice_->layout->shape_of_tile(number_);
  if (!read_arrived()) return false;
  result_ = {};
  std::ranges::fill(taken_, 0);
  empty_ = empty_tiles();
  listed_ = empty_ > 0 ? 0 : listed_tiles();
  ready_ = empty_ > 0 || (listed_ > 0 ? unite_lists(listed_) : unite_parts());
  return ready_;
}

std::uint64_t TileSum::empty_tiles() const {
  std::uint64_t empty = std::min(tiles_ - summed_, wire::kMostEmptyTiles);
  for (const int rank : ranks_) {
    empty = context_.is_self(rank) ? slice_->local->tile_input().empty_tiles(number_, empty)
                                   : std::min(empty, arrived(rank).empty_tiles());
  }
  return empty;
}

bool TileSum::read_arrived() {
  for (const int rank : ranks_) {
    if (context_.is_self(rank)) continue;
    const auto tile = intake_.tile(*slice_, rank, shape_);
    if (!tile) return false;
    if (tile->listed && tile->tiles > slice_->layout->listable_tiles(number_)) {
      intake_.refuse_tile(*slice_, rank, wire::kShortInList);
      return false;
    }
    arrived_[static_cast<std::size_t>(rank)] = *tile;
  }
  return true;
}

/// Returns how many tiles from the next one on are best summed as lists, all at once: none, if a rank tells
/// of them in another way, or if they have too many units.
std::uint64_t TileSum::listed_tiles() const {
  if (ranks_.size() > kListedRanks || rule() != wire::ValueRule::as_is) return 0;
  const SliceLayout& layout = *slice_->layout;
  std::uint64_t tiles = std::min({tiles_ - summed_, layout.listable_tiles(number_), wire::kMostListTiles,
                                  wire::kMostListUnits / layout.tile_units()});
  for (const int rank : ranks_) {
    if (context_.is_self(rank)) {
      tiles = slice_->local->tile_input().listed_tiles(tiles);
    } else {
      const wire::Tile& tile = arrived(rank);
      tiles = tile.listed || tile.count == 0 ? std::min(tiles, tile.tiles) : 0;
    }
  }
  while (tiles > 0 && !lists_pay(tiles)) tiles /= 2;
  return tiles;
}

/// Whether these tiles' units are so few that they can be summed as lists, and that this is fast. The sum
/// fits a message, even if no two ranks have the same unit.
bool TileSum::lists_pay(std::uint64_t tiles) const {
  std::uint64_t held = 0, steps = 0;
  for (const int rank : ranks_) {
    const std::size_t listed = listed_of(rank, tiles);
    if (held > 0 && listed > 0) steps += held + listed;
    held += listed;
  }
  const SliceLayout& layout = *slice_->layout;
  return held <= most_listed() && steps * layout.units_per_list_step() <= tiles * layout.tile_units();
}

/// Returns how many units the rank has listed of the next tiles.
std::size_t TileSum::listed_of(int rank, std::uint64_t tiles) const {
  if (context_.is_self(rank)) return slice_->local->tile_input().units_in(number_, tiles);
  const wire::Tile& tile = arrived(rank);
  if (!tile.listed || tiles == tile.tiles) return tile.count;
  return listed_below(tile, intake_.list_begin(*slice_, rank) + tiles * slice_->layout->tile_units());
}

/// Merges the lists of so many tiles, or finds that all of these are empty. Returns false after a failure.
bool TileSum::unite_lists(std::uint64_t tiles) {
  const std::uint64_t units = slice_->layout->units_of_tiles(number_, tiles);
  const int ranks = static_cast<int>(ranks_.size());
  const bool single = shape_.unit == 1;
  std::size_t left = most_listed();
  // This rank's list is read where it is kept, and the others are counted as it is.
  std::uint32_t base = 0;
  if (single) {
    if (slice_->local != nullptr) base = slice_->local->tile_input().list_base(*slice_->layout, number_);
    sum_.lists().start(type(), op(), ranks, base);
  } else {
    sum_.unit_lists().start(type(), op(), ranks, shape_.unit);
  }
  for (const int rank : ranks_) {
    const std::size_t count = taken(rank) = listed_of(rank, tiles);
    if (count == 0) continue;
    const bool own = context_.is_self(rank);
    const auto offsets = sum_.list_of(static_cast<std::size_t>(rank));
    // A peer that writes to its list meanwhile may let it have more than lists_pay() has counted.
    if (count > left || (!own && !read_list(arrived(rank), count, intake_.list_begin(*slice_, rank), units,
                                            offsets.data(), base))) {
      intake_.refuse_tile(*slice_, rank, "its index set is malformed");
      return false;
    }
    ElementList list{.offsets = offsets.first(count), .values = arrived(rank).values.data()};
    if (own) {
      Operation& local = *slice_->local;
      const TileInput& input = local.tile_input();
      list = single ? input.kept_list(local.layout, number_, tiles, offsets.data())
                    : input.list(local.layout, number_, tiles, offsets.data());
      local.add(local.input_blocks, count);  // where there are lists, units are blocks
    }
    if (single) {
      sum_.lists().add(list);
    } else {
      sum_.unit_lists().add(list);
    }
    left -= count;
  }
  if (left == most_listed()) {
    empty_ = std::exchange(listed_, 0);
    return true;
  }
  result_.part.units = single ? sum_.lists().unite_later() : sum_.unit_lists().unite();
  return true;
}

/// Finds the union of the ranks' index sets, and how it travels. Returns false after a failure.
bool TileSum::unite_parts() {
  all_drawn_ = true;
  sum_.start(type(), op(), shape_);
  for (const int rank : ranks_) {
    if (!context_.is_self(rank)) taken(rank) = listed_of(rank, 1);
    const auto part = part_of(rank, sum_.next_scratch());
    if (!part) return false;
    sum_.add(*part);
  }
  TilePart result = sum_.unite();
  // A result has the elements that all ranks draw if all of them have sent these, and no more.
  result.drawn = all_drawn_;
  CodeRules rules = rules_;
  rules.coded = coder_ != nullptr;  // most of a coded result is its index set
  CodedValues values = values_in(code(), type(), result.count);
  if (coder_ != nullptr && result.count > 0)
    values = {code(), coder_->parameter(), coder_->bytes(result.count)};
  result_ = code_tile(result, shape_.units(), type(), values, rules, sum_.scratch());
  return true;
}

/// Returns what a rank holds of the next tile, or nothing after a failure.
std::optional<TilePart> TileSum::part_of(int rank, TileScratch& scratch) {
  if (context_.is_self(rank)) return own_part(scratch);
  const wire::Tile& tile = arrived(rank);
  std::span<const std::uint16_t> drawn;
  if (slice_->local != nullptr)
    drawn = slice_->local->tile_input().drawn(*slice_->layout, number_, tile, scratch);
  auto part = tile.listed
                  ? read_listed_tile(tile, taken(rank), intake_.list_begin(*slice_, rank), shape_, scratch)
                  : read_part(tile, shape_, scratch, {}, drawn);
  all_drawn_ &= tile.index_code == wire::IndexCode::drawn;
  if (!part) intake_.refuse_tile(*slice_, rank, "its index set or its values are malformed");
  return part;
}

/// Returns what this member's own rank holds of the next tile, as the other ranks would get it.
TilePart TileSum::own_part(TileScratch& scratch) {
  Operation& local = *slice_->local;
  auto part = local.tile_input().part(local.layout, number_, scratch, scratch.values());
  assert(part);  // the scratch has room for all values
  local.input_blocks.fetch_add(TileBlocks(local.layout.block_units()).count(*part, shape_.units(), scratch),
                               std::memory_order_relaxed);
  all_drawn_ &= part->drawn;
  if (code() != wire::ValueCode::as_is && !wire::is_coded(rule())) round(*part, scratch);
  return *part;
}

/// Rounds this rank's own values as the other ranks have rounded theirs before sending them. So the sum does
/// not depend on which rank owns the slice.
void TileSum::round(TilePart& part, TileScratch& scratch) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(spare_.get());
  auto* const floats = reinterpret_cast<float*>(scratch.values().data());
  narrow(narrow_type(code()), reinterpret_cast<const float*>(part.values), part.count, halves);
  widen(narrow_type(code()), halves, part.count, floats);
  part.values = scratch.values().data();
}

std::uint64_t TileSum::sum_into(std::byte* to, std::uint64_t at) {
  const std::uint64_t tiles = std::max<std::uint64_t>({empty_, listed_, 1});
  if (empty_ > 0) {
    write_empty_tiles(to, empty_);
  } else if (listed_ > 0) {
    write_list(to, at);
  } else {
    if (result_.part.count > 0) write_values(to + result_.values_at(at));
    write_tile(result_, at, sum_.scratch(), to);
  }
  const std::uint64_t written = bytes(at);
  // The contributions' slots go back, as far as they have been summed.
  for (const int rank : ranks_) {
    if (!context_.is_self(rank)) intake_.consume_tiles(rank, arrived(rank), tiles, taken(rank));
  }
  summed_ += tiles;
  ready_ = false;
  here_ = 0;
  return written;
}

/// Writes the sum of lists. How many units it has may be known only when it is written. Its offsets then lie
/// behind room for more values than there are, and are moved to where they belong.
void TileSum::write_list(std::byte* to, std::uint64_t at) {
  const std::uint64_t each = element_bytes(type());
  std::byte* const values = list_values(to, at, each);
  std::size_t& units = result_.part.units;
  std::uint32_t* const offsets = begin_list(to, at, each, shape_.unit, listed_, units);
  const std::size_t united =
      shape_.unit == 1 ? sum_.lists().emit(values, offsets) : sum_.unit_lists().emit(values, offsets);
  if (united == units) return;
  units = united;
  std::memmove(begin_list(to, at, each, 1, listed_, units), offsets, units * sizeof *offsets);
}

/// Writes the sums of the elements in the union, in the code of the result. Those of a coder are summed in
/// fp32, and it writes what travels and keeps what that loses.
void TileSum::write_values(std::byte* to) {
  if (coder_ == nullptr && code() == wire::ValueCode::as_is) return sum_.write(to);
  TileScratch& scratch = sum_.scratch();
  const std::span sums(reinterpret_cast<float*>(scratch.values().data()), result_.part.count);
  sum_.write(scratch.values().data());
  if (coder_ == nullptr) {
    narrow(narrow_type(code()), sums.data(), sums.size(), reinterpret_cast<std::uint16_t*>(to));
    return;
  }
  coder_->code({.begin = slice_->layout->tile_begin(number_),
                .offsets = as_offsets(result_.part, scratch.offsets()),
                .sums = sums,
                .spare = {reinterpret_cast<float*>(spare_.get()), sums.size()}},
               to);
}

}  // namespace nzcl::engine
