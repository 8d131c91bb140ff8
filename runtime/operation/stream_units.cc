#include "runtime/operation/stream_units.h"

#include <algorithm>
#include <limits>

#include "runtime/base/divide.h"
#include "runtime/kernels/index_stream.h"
#include "runtime/kernels/offsets.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {

StreamUnits::StreamUnits(std::size_t most, const SliceLayout& layout)
    : tiles_(layout.tiles()), tile_units_(layout.tile_units()) {
  std::size_t each = sizeof(std::uint32_t);
  // As many as two ranks would not tell in lists.
  if (most * list_steps(2) * layout.units_per_list_step() > tiles_ * tile_units_) {
    kept_ = Kept::in_tiles, each = sizeof(std::uint16_t);
  } else {
    const std::uint64_t entries = std::max<std::uint64_t>(most / kUnitsWorthTile, 1);
    while (ceil_div(tiles_, std::uint64_t{1} << shift_) > entries) ++shift_;
    if (tiles_ > std::numeric_limits<std::uint32_t>::max() / tile_units_)
      kept_ = Kept::wide, each = sizeof(std::uint64_t);
  }
  groups_.resize(ceil_div(tiles_, std::uint64_t{1} << shift_) + 1);
  memory_.reset(new std::byte[most * each]);
}

/// Notes that no units but those that are there come before group `end`.
void StreamUnits::begin_groups(std::uint64_t end) {
  for (; begun_ < end; ++begun_) groups_[begun_] = size_;
}

template <typename T>
void StreamUnits::cut(std::span<const T> units) {
  for (std::size_t at = 0; at < units.size();) {
    const std::uint64_t tile = static_cast<std::uint64_t>(units[at]) / tile_units_;
    const std::size_t behind = find_index(units, at, (tile + 1) * tile_units_);
    begin_groups(tile + 1);
    offsets_in_slice(units.subspan(at, behind - at), tile * tile_units_,
                     this->units<std::uint16_t>() + size_);
    size_ += behind - at;
    at = behind;
  }
}

template <typename T>
void StreamUnits::append_as(std::span<const T> units) {
  if (kept_ == Kept::in_tiles) return cut(units);
  if (kept_ == Kept::wide) {
    std::copy(units.begin(), units.end(), this->units<std::uint64_t>() + size_);
  } else {
    std::transform(units.begin(), units.end(), this->units<std::uint32_t>() + size_,
                   [](T unit) { return static_cast<std::uint32_t>(unit); });
  }
  size_ += units.size();
}

void StreamUnits::append(std::span<const std::int32_t> units) { append_as(units); }
void StreamUnits::append(std::span<const std::uint32_t> units) { append_as(units); }
void StreamUnits::append(std::span<const std::int64_t> units) { append_as(units); }

void StreamUnits::end() {
  const std::uint64_t groups = groups_.size() - 1;
  if (kept_ != Kept::in_tiles) {
    std::size_t found = 0;
    for (std::uint64_t group = 1; group < groups; ++group) {
      const std::uint64_t first = (group << shift_) * tile_units_;
      found = kept_ == Kept::wide
                  ? find_index(std::span<const std::uint64_t>(units<std::uint64_t>(), size_), found, first)
                  : find_index(std::span<const std::uint32_t>(units<std::uint32_t>(), size_), found, first);
      groups_[group] = found;
    }
    begun_ = groups;
  }
  begin_groups(groups + 1);
}

std::size_t StreamUnits::before(std::uint64_t tile) const {
  const std::uint64_t group = tile >> shift_;
  if (group + 1 >= groups_.size()) return size_;
  if (tile == group << shift_) return groups_[group];
  const std::uint64_t first = tile * tile_units_;
  // Without branches, because nobody can predict them.
  std::size_t begin = groups_[group], left = groups_[group + 1] - begin;
  for (; left > 1; left -= left / 2) begin += at(begin + left / 2 - 1) < first ? left / 2 : 0;
  return begin + (left == 1 && at(begin) < first ? 1 : 0);
}

std::uint64_t StreamUnits::tile_from(std::uint64_t tile) const {
  if (kept_ != Kept::in_tiles) return at(before(tile)) / tile_units_;
  while (groups_[tile + 1] == groups_[tile]) ++tile;
  return tile;
}

std::span<const std::uint16_t> StreamUnits::of_tile(std::uint64_t tile, std::size_t place,
                                                    std::span<std::uint16_t> to) const {
  const std::uint64_t first = tile * tile_units_;
  switch (kept_) {
    case Kept::in_tiles:
      return {units<std::uint16_t>() + place, to.size()};
    case Kept::narrow:
      offsets_in_slice(std::span<const std::uint32_t>(units<std::uint32_t>() + place, to.size()), first,
                       to.data());
      break;
    case Kept::wide:
      offsets_in_slice(std::span<const std::int64_t>(units<std::int64_t>() + place, to.size()), first,
                       to.data());
      break;
  }
  return to;
}

void StreamUnits::list(std::uint64_t tile, std::uint64_t tiles, Range range, std::uint32_t* to) const {
  const auto [place, count] = range;
  // The lowest 32 bits are all that matters.
  const auto less = static_cast<std::uint32_t>(tile * tile_units_);
  const auto subtract = [&](const auto* from) {
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<std::uint32_t>(from[i]) - less;
  };
  switch (kept_) {
    case Kept::in_tiles:
      for (std::uint64_t t = tile; t < tile + tiles; ++t) {
        const std::span<const std::uint16_t> offsets(units<std::uint16_t>() + groups_[t],
                                                     groups_[t + 1] - groups_[t]);
        widen_offsets(offsets, static_cast<std::uint32_t>((t - tile) * tile_units_),
                      to + (groups_[t] - place));
      }
      break;
    case Kept::narrow:
      return subtract(units<std::uint32_t>() + place);
    case Kept::wide:
      return subtract(units<std::uint64_t>() + place);
  }
}

}  // namespace nzcl::engine
