#include "runtime/exchange/merging/partial_sender.h"

#include <fmt/format.h>

#include <cstring>

namespace nzcl::engine {

using wire::Direction;

PartialSender::PartialSender(LaneContext& context, std::uint16_t to, bool keeps, bool lists)
    : context_(context),
      to_(to),
      keeps_(keeps),
      slot_bytes_(context.slot_bytes(kPriority)),
      unsent_(kMergingKept),
      kept_(slot_bytes_, kMergingKept, lists) {}

/// Makes room for a tile in the section of its slice, or in a new one. Returns false, after a failure, if no
/// message has room for it.
bool PartialSender::begin_tile(Operation& op, const TilePlace& place, std::uint64_t most_bytes) {
  return make_room(op, place, most_bytes, !open_ || header_.sequence != place.sequence);
}

void PartialSender::put_empty_tiles(Operation& op, const TilePlace& place, std::uint64_t tiles) {
  if (!begin_tile(op, place, kEmptyTilesBytes)) return;
  write_empty_tiles(message_.next(), tiles);
  end_tiles(op, kEmptyTilesBytes, tiles);
}

void PartialSender::put_list(Operation& op, const TilePlace& place, const OwnList& list) {
  if (!begin_tile(op, place, list.bytes(op.layout, 0) + op.layout.element_bytes())) return;
  const std::uint64_t at = message_.bytes() - payload_at_;
  list.write(op, at, message_.next());
  end_tiles(op, list.bytes(op.layout, at), list.tiles);
}

/// Takes what has been written.
void PartialSender::end_tiles(Operation& op, std::uint64_t bytes, std::uint64_t tiles) {
  if (message_.take(bytes) == nullptr) return fail_without_room(op);
  header_.tiles += static_cast<std::uint32_t>(tiles);
  header_.flags |= wire::kTiles;
  op.add(op.bytes_sent, bytes);
  if (message_.bytes() >= kFullMessageBytes) close();
}

void PartialSender::refuse(Operation& op, const TilePlace& place, const wire::Refusal& refusal) {
  TilePlace whole = place;
  whole.tile = 0;
  if (!make_room(op, whole, refusal.bytes(), true)) return;
  if (!message_.put(refusal.text().data(), refusal.bytes())) return fail_without_room(op);
  header_.flags |= wire::kRefused;
  header_.refused_by = refusal.rank();
  header_.refusal_code = refusal.code();
  op.add(op.bytes_sent, refusal.bytes());
}

/// Begins another message if this one has no room for `bytes` bytes. Begins a section in a new message, or if
/// one is wanted. Returns false, after a failure, if an empty message has no room either.
bool PartialSender::make_room(Operation& op, const TilePlace& place, std::uint64_t bytes, bool section) {
  const std::uint64_t begin =
      section ? wire::aligned_section(message_.bytes()) + wire::kMaxOverhead : message_.bytes();
  if (open_ && (begin + bytes > slot_bytes_ || (section && sections_ == wire::kMaxSections))) close();
  if (!open_) open_message(), section = true;
  const bool fits = (!section || begin_section(op, place)) && message_.room() >= bytes;
  if (!fits) fail_without_room(op);
  return fits;
}

/// Tensors are cut so that an empty message has room for a tile, so this is a fault of nzcl's own.
void PartialSender::fail_without_room(const Operation& op) {
  context_.fail(ErrorCode::internal,
                fmt::format("a tile of operation {} does not fit a slot of {} bytes", op.epoch, slot_bytes_));
}

void PartialSender::open_message() {
  buffer_ = context_.pool(kPriority).acquire();
  message_ = {context_.pool(kPriority).buffer(buffer_), slot_bytes_};
  sections_ = 0;
  open_ = true;
}

/// The record is in the slice's first section. Returns false if there is no room.
bool PartialSender::begin_section(Operation& op, const TilePlace& place) {
  if (sections_++ > 0) {
    header_.flags |= wire::kMore;
    end_section();
    if (!message_.fill_up_to(wire::aligned_section(message_.bytes()))) return false;
  }
  header_ = {
      .epoch = place.epoch, .slice = place.slice, .sequence = place.sequence, .stream_offset = place.tile};
  header_at_ = message_.take(sizeof header_);
  if (header_at_ == nullptr) return false;
  if (place.tile == 0) {
    header_.flags = wire::kHasBitmap;
    const wire::OperationRecord record = op.record_of(place.slice);
    if (!message_.put(&record, sizeof record)) return false;
  }
  payload_at_ = message_.bytes();
  op.add(op.bytes_sent, static_cast<std::uint64_t>(message_.next() - header_at_));
  return true;
}

void PartialSender::end_section() {
  header_.payload_bytes = static_cast<std::uint32_t>(message_.bytes() - payload_at_);
  std::memcpy(header_at_, &header_, sizeof header_);
}

void PartialSender::close() {
  if (!open_) return;
  open_ = false;
  if (context_.failure) return context_.pool(kPriority).release(buffer_);  // it may have no section
  end_section();
  unsent_.push_back({buffer_, static_cast<std::uint32_t>(message_.bytes())});
  LaneStatistics::add(context_.statistics.bytes_copied, message_.bytes());
  if (!keeps_) return;
  context_.pool(kPriority).add_reference(buffer_);
  kept_.push(message_.begin(), buffer_);
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

}  // namespace nzcl::engine
