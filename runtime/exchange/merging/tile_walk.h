// Where an exchange has come to: a walk over the tiles of all operations that are merged on a lane.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/operation/operation.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// The next tile of a slice of an operation.
struct TilePlace {
  std::uint64_t epoch = 0, slice = 0;
  std::uint64_t sequence = 0;  // of the slice among all that this lane has merged
  std::uint64_t tile = 0;      // within the slice
  std::uint64_t tiles = 0;     // of the slice
  wire::TileShape shape;       // of the tile
};

/// The operations that are merged on a lane, by number.
struct MergedOperations {
  Operation& at(std::uint64_t number) const { return *latest[number % kMaxOperations]; }
  /// The first slice of an operation from this one on that is merged on the lane, or the number of all
  /// slices.
  std::uint64_t slice_from(const Operation& op, std::uint64_t slice) const;

  std::uint32_t lane = 0;
  std::array<Operation*, kMaxOperations> latest{};  // by number, modulo that
  std::uint64_t submitted = 0;
};

/// How far a part of the exchange has come: in how many operations, and in the next one. It takes the lane's
/// slices of an operation one after the other. For one thread.
class TileWalk {
 public:
  explicit TileWalk(const MergedOperations& operations) : operations_(&operations) {}

  /// Returns the operation that comes next, and begins it; nullptr if there is none.
  Operation* operation();
  /// How many operations are over, and whether the one that comes next has begun: only then has it a place.
  std::uint64_t over() const { return over_; }
  bool begun() const { return begun_; }
  const TilePlace& place() const { return place_; }
  /// The number of the next tile in its tensor.
  std::uint64_t tile() const { return layout().tile_number(place_.slice, place_.tile); }
  /// How many tiles of the slice one descriptor can stand for, if all of them are empty.
  std::uint64_t most_empty() const { return std::min(place_.tiles - place_.tile, wire::kMostEmptyTiles); }
  /// Whether it is behind the first tile of its operation.
  bool is_behind_first() const {
    return begun_ && (place_.tile > 0 || place_.slice > operations_->slice_from(operations_->at(over_), 0));
  }

  /// Goes on by so many tiles. Returns false, and stays behind the slice's last one, if there is no further
  /// one.
  bool next_tile(std::uint64_t tiles = 1);
  void next_slice();

 private:
  const SliceLayout& layout() const { return operations_->at(over_).layout; }
  void begin_slice(std::uint64_t slice);

  const MergedOperations* operations_;
  std::uint64_t over_ = 0;
  bool begun_ = false;
  TilePlace place_;
};

}  // namespace nzcl::engine
