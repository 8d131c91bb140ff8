#include "runtime/exchange/merging/merging_step.h"

#include <fmt/format.h>

#include <cassert>

#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/merging/partial_values.h"
#include "runtime/tile/tile_blocks.h"

namespace nzcl::engine {

using wire::Direction;

MergingStep::MergingStep(LaneContext& context, const MergingPlan& plan, int partner, bool exchanges,
                         bool merges, const MergedOperations& operations)
    : merged(operations),
      context_(context),
      partner_(static_cast<std::uint16_t>(partner)),
      partner_first_(partner < context.config.members.self),
      own_partial_(plan.partial(context.config.members.self, partner)),
      their_partial_(plan.partial(partner, context.config.members.self)),
      theirs_(context.slot_bytes(kPriority), context.config.channel(kPriority).slots),
      own_wide_(new std::byte[context.slot_bytes(kPriority)]),
      their_wide_(new std::byte[context.slot_bytes(kPriority)]) {
  if (exchanges) sender.emplace(context, partner_, merges);
}

// --- Messages arrive

bool MergingStep::receive() {
  ReceiveChannel& channel = context_.channels(kPriority, partner_).receive_up;
  bool any = false;
  while (!context_.failure) {
    const ReceiveChannel::Received message = channel.pop();
    if (message.data == nullptr) break;
    wire::SectionReader sections(message.data, context_.slot_bytes(kPriority), Direction::up);
    while (const auto section = sections.next()) {
      if (!take(*section)) return any;
    }
    if (sections.wrong() != nullptr) return malformed(sections.wrong()) || any;
    theirs_.push(message.data, message.slot);
    any = true;
  }
  return any;
}

/// Checks the form of a section, and compares what it says about operations with what is known of them. What
/// must come next is compared when the message is read.
bool MergingStep::take(const wire::Section& section) {
  const wire::Header& header = section.header;
  const bool has_record = (header.flags & wire::kHasBitmap) != 0;
  LaneStatistics::add(context_.statistics.bytes_received, section.bytes);
  if (has_record != (header.stream_offset == 0))
    return malformed("a record belongs into a slice's first section, and nowhere else");
  if (!has_record) return true;
  if (header.bitmap_bytes != 0) return malformed("it has a bitmap, and tiles have none");
  if (const char* wrong = wire::wrong_with(section.record)) return malformed(wrong);
  if ((header.flags & wire::kRefused) == 0)
    return agree(context_, partner_, header.epoch, section.record, nullptr);
  if (header.refused_by >= context_.config.members.workers)
    return malformed("it is refused by a rank that does not exist");
  const wire::Refusal refusal(header.refused_by, header.refusal_code,
                              {reinterpret_cast<const char*>(section.payload), header.payload_bytes});
  return agree(context_, partner_, header.epoch, section.record, &refusal);
}

bool MergingStep::malformed(const char* wrong) {
  context_.fail(ErrorCode::transport,
                fmt::format("rank {} sent a malformed partial sum: {}", context_.number(partner_), wrong));
  return false;
}

bool MergingStep::refuse(const char* wrong) {
  const TilePlace& place = merged.place();
  context_.fail(ErrorCode::transport,
                fmt::format("rank {} sent a partial sum of operation {} slice {} that "
                            "can't be: {}",
                            context_.number(partner_), place.epoch, place.slice, wrong));
  return false;
}

// --- They are looked at

TileQueue::Next MergingStep::look_own(const Operation& op) {
  if (!sender && !own_refusal_ && op.refusal) own_refusal_ = *op.refusal;
  if (own_refusal_) return Next::refusal;
  if (!sender) return Next::tile;
  TileQueue& kept = sender->kept();
  const Next next = kept.look(merged.place(), own_partial_ ? partial_type(op) : op.type());
  if (next == Next::refusal) {
    own_refusal_ = kept.refusal();
    advance_own();
  } else if (next == Next::wrong) {
    context_.fail(ErrorCode::internal,
                  fmt::format("a partial sum of this rank cannot be read: {}", kept.wrong()));
  }
  return next;
}

TileQueue::Next MergingStep::look_theirs(Operation& op) {
  if (their_refusal_) return Next::refusal;
  const Next next = theirs_.look(merged.place(), their_partial_ ? partial_type(op) : op.type());
  if (next == Next::refusal) {
    their_refusal_ = theirs_.refusal();
    advance_theirs(op);
  } else if (next == Next::wrong) {
    refuse(theirs_.wrong());
  }
  return next;
}

std::uint64_t MergingStep::own_empty_tiles(const Operation& op) {
  return sender ? sender->kept().tile().empty_tiles()
                : op.tile_input().empty_tiles(merged.tile(), merged.most_empty());
}

void MergingStep::advance_own(std::uint64_t tiles) {
  if (!sender) return;
  if (const auto token = sender->kept().advance(tiles)) sender->release(*token);
}

void MergingStep::advance_theirs(Operation& op, std::uint64_t tiles) {
  if (const auto slot = theirs_.advance(tiles))
    context_.channels(kPriority, partner_).receive_up.release(*slot);
  op.add(op.bytes_received, theirs_.take_bytes());
}

wire::Refusal MergingStep::take_refusal() {
  const bool theirs = !own_refusal_ || (their_refusal_ && their_refusal_->rank() < own_refusal_->rank());
  const wire::Refusal refusal = theirs ? *their_refusal_ : *own_refusal_;
  own_refusal_.reset();
  their_refusal_.reset();
  return refusal;
}

// --- They are merged

const TilePart* MergingStep::unite(Operation& op, PartSum& sum) {
  const DataType type = partial_type(op);
  sum.start(type, partial_op(op.reduce_op()), merged.place().shape);
  for (const bool theirs : {partner_first_, !partner_first_}) {
    auto part = theirs ? read(theirs_.tile(), sum.next_scratch()) : own_part(op, sum.next_scratch());
    if (!part) return nullptr;
    // A contribution's values are in the tensor's type.
    const bool partial = theirs ? their_partial_ : own_partial_;
    if (!partial && part->count > 0 && type != op.type()) {
      std::byte* const wide = theirs ? their_wide_.get() : own_wide_.get();
      widen_values(op.type(), type, part->values, part->count, wide);
      part->values = wide;
    }
    sum.add(*part);
  }
  return &sum.unite();
}

/// What this rank has summed so far. Where its contribution is a list in memory, that is read again, and not
/// what was sent of it.
std::optional<TilePart> MergingStep::own_part(Operation& op, TileScratch& scratch) {
  if (own_partial_ || (sender && !op.tile_input().needs_no_scan()))
    return read(sender->kept().tile(), scratch);
  return input_part(op, merged.tile(), scratch, !sender);
}

/// Reads a tile. Returns nothing, after a failure, if its index set is malformed.
std::optional<TilePart> MergingStep::read(const wire::Tile& tile, TileScratch& scratch) {
  auto part = read_part(tile, merged.place().shape, scratch);
  if (!part) refuse("its index set is malformed");
  return part;
}

TilePart input_part(Operation& op, std::uint64_t tile, TileScratch& scratch, bool counts) {
  const auto part = op.tile_input().part(op.layout, tile, scratch, scratch.values());
  assert(part);  // the scratch has room for all values
  if (counts) {
    const std::uint64_t units = op.layout.shape_of_tile(tile).units();
    op.input_blocks.fetch_add(TileBlocks(op.layout.block_units()).count(*part, units, scratch),
                              std::memory_order_relaxed);
  }
  return *part;
}

}  // namespace nzcl::engine
