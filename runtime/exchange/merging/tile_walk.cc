#include "runtime/exchange/merging/tile_walk.h"

namespace nzcl::engine {

std::uint64_t MergedOperations::slice_from(const Operation& op, std::uint64_t slice) const {
  while (slice < op.layout.slices() && op.layout.owner(slice) != lane) ++slice;
  return slice;
}

Operation* TileWalk::operation() {
  if (over_ == operations_->submitted) return nullptr;
  Operation& op = operations_->at(over_);
  if (!begun_) begin_slice(operations_->slice_from(op, 0));
  return &op;
}

void TileWalk::begin_slice(std::uint64_t slice) {
  begun_ = slice < layout().slices();
  if (!begun_) {
    ++over_;
    return;
  }
  place_.epoch = operations_->at(over_).epoch;
  place_.slice = slice;
  place_.tile = 0;
  place_.tiles = layout().tiles_of(slice);
  place_.shape = layout().shape_of_tile(tile());
}

void TileWalk::next_slice() {
  ++place_.sequence;
  begin_slice(operations_->slice_from(operations_->at(over_), place_.slice + 1));
}

bool TileWalk::next_tile(std::uint64_t tiles) {
  place_.tile += tiles;
  if (place_.tile == place_.tiles) return false;
  place_.shape = layout().shape_of_tile(tile());
  return true;
}

}  // namespace nzcl::engine
