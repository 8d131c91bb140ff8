#include "runtime/exchange/merging/partial_sender.h"

#include <cassert>
#include <cstring>

namespace nzcl::engine {

using wire::Direction;

PartialSender::PartialSender(LaneContext& context, std::uint16_t to, bool keeps)
    : context_(context),
      to_(to),
      keeps_(keeps),
      slot_bytes_(context.slot_bytes(kPriority)),
      unsent_(kMergingKept),
      kept_(slot_bytes_, kMergingKept) {}

PartialSender::Room PartialSender::begin_tile(Operation& op, const TilePlace& place,
                                              std::uint64_t most_bytes) {
  make_room(op, place, most_bytes, !open_ || header_.sequence != place.sequence);
  return {base_ + used_, used_ - payload_at_, slot_bytes_ - used_};
}

void PartialSender::end_tile(Operation& op, std::uint64_t bytes) {
  used_ += bytes;
  ++header_.tiles;
  header_.flags |= wire::kTiles;
  op.add(op.bytes_sent, bytes);
  if (used_ >= kFullMessageBytes) close();
}

void PartialSender::refuse(Operation& op, const TilePlace& place, const wire::Refusal& refusal) {
  TilePlace whole = place;
  whole.tile = 0;
  make_room(op, whole, refusal.bytes(), true);
  header_.flags |= wire::kRefused;
  header_.refused_by = refusal.rank();
  header_.refusal_code = refusal.code();
  std::memcpy(base_ + used_, refusal.text().data(), refusal.bytes());
  used_ += refusal.bytes();
  op.add(op.bytes_sent, refusal.bytes());
}

/// Begins another message if this one has no room for so many bytes, and a section if one is wanted, or if
/// that is in the new message.
void PartialSender::make_room(Operation& op, const TilePlace& place, std::uint64_t bytes, bool section) {
  const std::uint64_t begin = section ? wire::aligned_section(used_) + wire::kMaxOverhead : used_;
  if (open_ && (begin + bytes > slot_bytes_ || (section && sections_ == wire::kMaxSections))) close();
  if (!open_) open_message(), section = true;
  if (section) begin_section(op, place);
  assert(used_ + bytes <= slot_bytes_);
}

void PartialSender::open_message() {
  buffer_ = context_.pool(kPriority).acquire();
  base_ = context_.pool(kPriority).buffer(buffer_);
  used_ = sections_ = 0;
  open_ = true;
}

/// The record is in the slice's first section.
void PartialSender::begin_section(Operation& op, const TilePlace& place) {
  if (sections_++ > 0) {
    header_.flags |= wire::kMore;
    end_section();
    const std::uint64_t begin = wire::aligned_section(used_);
    std::memset(base_ + used_, 0, begin - used_);
    used_ = begin;
  }
  header_ = {
      .epoch = place.epoch, .slice = place.slice, .sequence = place.sequence, .stream_offset = place.tile};
  header_at_ = used_;
  used_ += sizeof header_;
  if (place.tile == 0) {
    header_.flags = wire::kHasBitmap;
    const wire::OperationRecord record = op.record_of(place.slice);
    std::memcpy(base_ + used_, &record, sizeof record);
    used_ += sizeof record;
  }
  payload_at_ = used_;
  op.add(op.bytes_sent, used_ - header_at_);
}

void PartialSender::end_section() {
  header_.payload_bytes = static_cast<std::uint32_t>(used_ - payload_at_);
  std::memcpy(base_ + header_at_, &header_, sizeof header_);
}

void PartialSender::close() {
  if (!open_) return;
  end_section();
  open_ = false;
  unsent_.push_back({buffer_, static_cast<std::uint32_t>(used_)});
  LaneStatistics::add(context_.statistics.bytes_copied, used_);
  if (!keeps_) return;
  context_.pool(kPriority).add_reference(buffer_);
  kept_.push(base_, buffer_);
}

bool PartialSender::send() {
  bool any = false;
  while (!unsent_.empty() && context_.outbox.room() > 0 &&
         context_.channels(kPriority, to_).send_up.ready()) {
    const Composed message = unsent_.front();
    unsent_.pop_front();
    StagingPool& pool = context_.pool(kPriority);
    const verbs::Segment segment{pool.buffer(message.buffer), message.bytes, pool.region()};
    context_.push_message(kPriority, Direction::up, to_, message.buffer, {&segment, 1});
    any = true;
  }
  return any;
}

std::uint64_t write_tile(const PartialSender::Room& room, const TilePart& part, std::size_t units,
                         std::uint64_t value_bytes, const CodeChoice& choice, TileScratch& scratch) {
  write_descriptor(room.to, choice, part.count, wire::ValueCode::as_is);
  const std::uint64_t bytes = tile_bytes(room.at, choice, value_bytes, part.count * value_bytes);
  if (part.count == 0) return bytes;
  const std::uint64_t values = wire::values_at(room.at, value_bytes) - room.at;
  std::memset(room.to + sizeof(std::uint32_t), 0, values - sizeof(std::uint32_t));
  std::byte* index = room.to + values + part.count * value_bytes;
  if (choice.index_bytes > 0) index += write_index(index, part, units, choice, scratch);
  std::memset(index, 0, static_cast<std::size_t>(room.to + bytes - index));
  return bytes;
}

}  // namespace nzcl::engine
