#include "runtime/exchange/merging/merging_step.h"

#include <fmt/format.h>

#include <cassert>
#include <type_traits>
#include <utility>

#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/merging/partial_values.h"
#include "runtime/tile/tile_blocks.h"
#include "runtime/tile/tile_list.h"

namespace nzcl::engine {

using wire::Direction;

namespace {

/// Whether the index set of a tile is in a form that can be merged as it is.
bool is_read_fast(const wire::Tile& tile) {
  return tile.index_code == wire::IndexCode::all || tile.index_code == wire::IndexCode::bitmap ||
         tile.index_code == wire::IndexCode::offsets;
}

}  // namespace

MergingStep::MergingStep(LaneContext& context, const MergingPlan& plan, int partner, bool exchanges,
                         bool merges, const MergedOperations& operations)
    : merged(operations),
      context_(context),
      partner_(static_cast<std::uint16_t>(partner)),
      partner_first_(partner < context.config.members.self),
      own_partial_(plan.partial(context.config.members.self, partner)),
      their_partial_(plan.partial(partner, context.config.members.self)),
      rule_(context, kPriority),
      lists_(merges_lists(context.config)),
      theirs_(context.slot_bytes(kPriority), context.config.channel(kPriority).slots, lists_),
      own_wide_(new std::byte[context.slot_bytes(kPriority)]),
      their_wide_(new std::byte[context.slot_bytes(kPriority)]) {
  if (exchanges) sender.emplace(context, partner_, merges, lists_);
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
  } else if (next == Next::tile && theirs_.tile().listed &&
             theirs_.tile().tiles > op.layout.listable_tiles(merged.tile())) {
    refuse(wire::kShortInList);
    return Next::wrong;
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
  if (const auto slot = theirs_.advance(tiles, std::exchange(their_listed_, 0)))
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
    auto part = theirs ? their_part(op, sum.next_scratch()) : own_part(op, sum.next_scratch());
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

/// What this rank has summed so far: what was sent of it. But where its contribution is a list in memory, and
/// was sent in a code that takes long to read, or in a list of more tiles, the list in memory is read again.
std::optional<TilePart> MergingStep::own_part(Operation& op, TileScratch& scratch) {
  if (sender) {
    const wire::Tile& sent = sender->kept().tile();
    if (own_partial_ || !op.tile_input().needs_no_scan() || is_read_fast(sent)) return read(sent, scratch);
  }
  return input_part(op, merged.tile(), scratch, !sender);
}

std::optional<TilePart> MergingStep::their_part(const Operation& op, TileScratch& scratch) {
  if (!theirs_.tile().listed) return read(theirs_.tile(), scratch);
  their_listed_ = their_listed(op, 1);
  auto part = read_listed_tile(theirs_.tile(), their_listed_, list_begin(op), merged.place().shape, scratch);
  if (!part) refuse("its index set is malformed");
  return part;
}

/// Reads a tile. Returns nothing, after a failure, if its index set is malformed.
std::optional<TilePart> MergingStep::read(const wire::Tile& tile, TileScratch& scratch) {
  auto part = read_part(tile, merged.place().shape, scratch);
  if (!part) refuse("its index set is malformed");
  return part;
}

// --- Lists are merged

std::uint64_t MergingStep::listed_tiles(const Operation& op) {
  if (!lists_) return 0;
  const wire::Tile &own = sender->kept().tile(), &theirs = theirs_.tile();
  const auto is_told = [](const wire::Tile& tile) { return tile.listed || tile.count == 0; };
  if (!is_told(own) || !is_told(theirs)) return 0;
  std::uint64_t tiles = std::min(own.tiles, theirs.tiles);
  while (tiles > 0 && !can_merge_lists(op, tiles)) tiles /= 2;
  return tiles;
}

/// Whether the sum fits the memory of a message, even if both sides have different units.
bool MergingStep::can_merge_lists(const Operation& op, std::uint64_t tiles) {
  const std::size_t own = op.tile_input().units_in(merged.tile(), tiles);
  their_listed_ = their_listed(op, tiles);
  return own + their_listed_ <= rule_.most_units(op.layout.element_bytes(), op.layout.unit_elements());
}

/// Returns how many units of their list are in the next tiles.
std::size_t MergingStep::their_listed(const Operation& op, std::uint64_t tiles) const {
  const wire::Tile& tile = theirs_.tile();
  if (!tile.listed || tiles == tile.tiles) return tile.count;
  return listed_below(tile, list_begin(op) + tiles * op.layout.tile_units());
}

/// What this rank has of the next tiles: just what was sent, if that is a list of these; it lies in a cache.
/// Otherwise the list is made once more, in `offsets`.
ElementList MergingStep::own_list(const Operation& op, std::uint64_t tiles,
                                  std::span<std::uint32_t> offsets) {
  const TileQueue& kept = sender->kept();
  const wire::Tile& sent = kept.tile();
  if (!sent.listed || sent.tiles != tiles || kept.tiles_before() > 0)
    return op.tile_input().list(op.layout, merged.tile(), tiles, offsets.data());
  return {.offsets = {reinterpret_cast<const std::uint32_t*>(sent.index.data()), sent.count},
          .values = sent.values.data()};
}

std::optional<ElementList> MergingStep::sum_lists(Operation& op, std::uint64_t tiles, PartSum& sum) {
  const std::uint64_t unit = op.layout.unit_elements();
  const int ranks = context_.config.members.workers;
  if (unit == 1) {
    sum.lists().start(op.type(), op.reduce_op(), ranks);
    return sum_by(sum.lists(), op, tiles, sum);
  }
  sum.unit_lists().start(op.type(), op.reduce_op(), ranks, unit);
  return sum_by(sum.unit_lists(), op, tiles, sum);
}

template <class Sum>
std::optional<ElementList> MergingStep::sum_by(Sum& lists, Operation& op, std::uint64_t tiles, PartSum& sum) {
  for (const bool theirs : {partner_first_, !partner_first_}) {
    const auto offsets = sum.list_of(theirs ? 1 : 0);
    ElementList list{.offsets = offsets.first(their_listed_), .values = theirs_.tile().values.data()};
    if (!theirs) {
      list = own_list(op, tiles, offsets);
    } else if (!read_list(theirs_.tile(), their_listed_, list_begin(op),
                          op.layout.units_of_tiles(merged.tile(), tiles), offsets.data())) {
      refuse("its index set is malformed");
      return std::nullopt;
    }
    if (!list.offsets.empty()) lists.add(list);
  }
  if constexpr (std::is_same_v<Sum, ListSum>) {
    lists.unite_later();
  } else {
    lists.unite();
  }
  // There is room for all units of both sides.
  TileScratch& to = sum.scratch();
  const std::size_t units = lists.emit(to.values().data(), to.list().data());
  return ElementList{.offsets = to.list().first(units), .values = to.values().data()};
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
