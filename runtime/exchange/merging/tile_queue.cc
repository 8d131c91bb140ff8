#include "runtime/exchange/merging/tile_queue.h"

#include <string_view>

namespace nzcl::engine {

using wire::Direction;

TileQueue::Next TileQueue::look(const TilePlace& place, DataType type) {
  if (messages_.empty()) return Next::nothing;
  if (!section_ && !open_section()) return Next::wrong;
  if (const char* wrong = wrong_with_section(place)) return refuse(wrong);
  const wire::Header& header = section_->header;
  if ((header.flags & wire::kRefused) != 0) return look_at_refusal();
  if (run_read_ > 0) return Next::tile;
  const auto tile =
      wire::read_tile({section_->payload, header.payload_bytes}, at_, type, place.shape, wrong_);
  if (!tile) return Next::wrong;
  if (tile->value_code != wire::ValueCode::as_is) return refuse("a tile of partial sums has coded values");
  if (tile->listed && !lists_) return refuse("partial sums are told tile by tile, and not in lists");
  if (tile->tiles > header.tiles - tiles_read_) return refuse("its section has not so many tiles");
  tile_ = *tile;
  return Next::tile;
}

/// Reads the next section's header. Its form was checked on arrival, but a peer may have changed it since.
bool TileQueue::open_section() {
  wire::SectionReader reader(messages_.front().data, slot_bytes_, Direction::up, next_section_);
  section_ = reader.next();
  if (!section_) {
    wrong_ = reader.wrong();
    return false;
  }
  more_ = reader.more();
  next_section_ = reader.at();
  tiles_read_ = at_ = 0;
  return true;
}

const char* TileQueue::wrong_with_section(const TilePlace& place) const {
  const wire::Header& h = section_->header;
  const bool refused = (h.flags & wire::kRefused) != 0;
  if (h.epoch != place.epoch || h.slice != place.slice || h.sequence != place.sequence)
    return "it is of another slice than what follows";
  if (!refused && h.tiles == 0) return "its tensor is exchanged in tiles";
  if (h.stream_offset + tiles_read_ != place.tile) return "it is not the tile that follows";
  if (!refused && h.tiles > place.tiles - h.stream_offset) return "its slice has not so many tiles";
  if (refused && place.tile != 0) return "it is refused after a part of it was sent";
  return nullptr;
}

TileQueue::Next TileQueue::look_at_refusal() {
  const wire::Header& h = section_->header;
  refusal_ = {h.refused_by, h.refusal_code,
              std::string_view(reinterpret_cast<const char*>(section_->payload), h.payload_bytes)};
  return Next::refusal;
}

/// Leaves of a list what lies behind so many of its units.
void TileQueue::pass_listed(std::size_t units) {
  tile_.values = tile_.values.subspan(tile_.values.size() / tile_.count * units);
  tile_.index = tile_.index.subspan(units * sizeof(std::uint32_t));
  tile_.count -= static_cast<std::uint32_t>(units);
}

std::optional<std::uint32_t> TileQueue::advance(std::uint64_t tiles, std::size_t listed) {
  if ((section_->header.flags & wire::kRefused) == 0) {
    tiles_read_ += tiles;
    tile_.tiles -= tiles;
    if (listed > 0) pass_listed(listed);
    run_read_ = tile_.tiles > 0 ? run_read_ + tiles : 0;
    if (run_read_ == 0) at_ = tile_.end;
    if (tiles_read_ < section_->header.tiles) return std::nullopt;
  }
  bytes_ += section_->bytes;
  section_.reset();
  if (more_) return std::nullopt;
  const std::uint32_t token = messages_.front().token;
  messages_.pop_front();
  next_section_ = 0;
  more_ = false;
  return token;
}

}  // namespace nzcl::engine
