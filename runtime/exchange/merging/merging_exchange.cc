#include "runtime/exchange/merging/merging_exchange.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/base/list_text.h"
#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/contributions/early_result.h"
#include "runtime/exchange/merging/partial_values.h"
#include "runtime/plan/partial_type.h"
#include "runtime/tile/tile_blocks.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Priority;

namespace {

constexpr Priority kPriority = Priority::merging;
/// A merge is of two partial sums: this rank's own, and its partner's.
constexpr std::size_t kSides = 2;

DataType partial_type(const Operation& op) { return engine::partial_type(op.type(), op.reduce_op()); }

DataType type_of(const Operation& op, bool partial) { return partial ? partial_type(op) : op.type(); }

}  // namespace

MergingExchange::MergingExchange(LaneContext& context)
    : context_(context),
      plan_(context.config.members.workers),
      self_(context.config.members.self),
      ranks_(context.config.members.workers),
      gives_(plan_.gives(self_)),
      rules_{context.config.index_code, context.config.short_codes},
      scratch_(context.slot_bytes(kPriority)),
      partial_sum_(kSides, context.slot_bytes(kPriority)),
      result_sum_(kSides, context.slot_bytes(kPriority)),
      own_wide_(new std::byte[context.slot_bytes(kPriority)]),
      their_wide_(new std::byte[context.slot_bytes(kPriority)]),
      result_values_(new std::byte[context.slot_bytes(kPriority)]) {
  const auto add = [&](int partner, bool exchanges) {
    Step& step = steps_.emplace_back();
    step.partner = static_cast<std::uint16_t>(partner);
    step.exchanges = exchanges;
    step.partner_first = partner < self_;
    step.own_partial = plan_.partial(self_, partner);
    step.their_partial = plan_.partial(partner, self_);
  };
  if (gives_) {
    add(self_ - 1, true);
  } else {
    if (plan_.takes(self_)) add(self_ + 1, false);
    for (int round = 0; round < plan_.rounds(); ++round) add(plan_.partner(self_, round), true);
  }
  for (Step& step : steps_) {
    if (step.exchanges) step.sender.emplace(context, step.partner, !gives_);
    step.theirs.emplace(context.slot_bytes(kPriority), context.config.channel(kPriority).slots);
  }
  if (plan_.takes(self_)) result_.emplace(context, static_cast<std::uint16_t>(self_ + 1), false);
}

void MergingExchange::submit(Operation& operation) {
  const auto lane = static_cast<std::uint32_t>(context_.config.lane);
  if (!operation.layout.on_lane(lane, static_cast<std::uint32_t>(context_.config.lanes))) return;
  operations_[submitted_++ % kMaxOperations] = &operation;
}

bool MergingExchange::step() {
  bool any = receive();
  any |= contribute();
  if (gives_) {
    while (!context_.failure && place_received()) any = true;
  } else {
    for (std::size_t i = 0; i < steps_.size(); ++i) any |= merge(i);
  }
  any |= send();
  return_credits();
  return any;
}

bool MergingExchange::idle() const {
  bool idle = submitted_ == finished_ && (!result_ || result_->all_sent());
  for (const Step& step : steps_) idle &= step.theirs->empty() && (!step.sender || step.sender->all_sent());
  return idle;
}

// --- Positions

/// Returns the operation that the cursor is in, and begins it if it has not; nullptr if there is none.
Operation* MergingExchange::at(Cursor& cursor) const {
  if (cursor.operation == submitted_) return nullptr;
  Operation* const op = operations_[cursor.operation % kMaxOperations];
  if (!cursor.begun) begin_slice(cursor, *op, slice_from(*op, 0));
  return op;
}

/// Returns the first slice from this one on that is merged on this lane, or the number of all slices.
std::uint64_t MergingExchange::slice_from(const Operation& op, std::uint64_t slice) const {
  const auto lane = static_cast<std::uint32_t>(context_.config.lane);
  while (slice < op.layout.slices() && op.layout.owner(slice) != lane) ++slice;
  return slice;
}

void MergingExchange::begin_slice(Cursor& cursor, const Operation& op, std::uint64_t slice) const {
  cursor.begun = slice < op.layout.slices();
  if (!cursor.begun) {
    ++cursor.operation;
    return;
  }
  TilePlace& place = cursor.place;
  place.epoch = op.epoch;
  place.slice = slice;
  place.tile = 0;
  place.tiles = op.layout.tiles_of(slice);
  place.shape = op.layout.shape_of_tile(number_of(op, place));
}

void MergingExchange::next_slice(Cursor& cursor, const Operation& op) const {
  ++cursor.place.sequence;
  begin_slice(cursor, op, slice_from(op, cursor.place.slice + 1));
}

/// Goes on by so many tiles. Returns false, and stays behind the slice's last one, if there is no further
/// one.
bool MergingExchange::next_tile(Cursor& cursor, const Operation& op, std::uint64_t tiles) const {
  TilePlace& place = cursor.place;
  place.tile += tiles;
  if (place.tile == place.tiles) return false;
  place.shape = op.layout.shape_of_tile(number_of(op, place));
  return true;
}

// --- Messages arrive

bool MergingExchange::receive() {
  bool any = false;
  for (Step& step : steps_) {
    ReceiveChannel& channel = context_.channels(kPriority, step.partner).receive_up;
    while (!context_.failure) {
      const ReceiveChannel::Received message = channel.pop();
      if (message.data == nullptr || !take(step, message)) break;
      step.theirs->push(message.data, message.slot);
      any = true;
    }
  }
  return any;
}

/// Checks the form of a message, and compares what it says about operations with what is known of them. What
/// must come next is compared when the message is read.
bool MergingExchange::take(const Step& step, const ReceiveChannel::Received& message) {
  wire::SectionReader sections(message.data, context_.slot_bytes(kPriority), Direction::up);
  while (const auto section = sections.next()) {
    if (!take_section(step, *section)) return false;
    LaneStatistics::add(context_.statistics.bytes_received, section->bytes);
  }
  return sections.wrong() == nullptr || malformed(step, sections.wrong());
}

bool MergingExchange::take_section(const Step& step, const wire::Section& section) {
  const wire::Header& header = section.header;
  const bool has_record = (header.flags & wire::kHasBitmap) != 0;
  if (has_record != (header.stream_offset == 0))
    return malformed(step, "a record belongs into a slice's first section, and nowhere else");
  if (!has_record) return true;
  if (header.bitmap_bytes != 0) return malformed(step, "it has a bitmap, and tiles have none");
  if (const char* wrong = wire::wrong_with(section.record)) return malformed(step, wrong);
  if ((header.flags & wire::kRefused) == 0)
    return agree(context_, step.partner, header.epoch, section.record, nullptr);
  if (header.refused_by >= ranks_) return malformed(step, "it is refused by a rank that does not exist");
  const wire::Refusal refusal(header.refused_by, header.refusal_code,
                              {reinterpret_cast<const char*>(section.payload), header.payload_bytes});
  return agree(context_, step.partner, header.epoch, section.record, &refusal);
}

bool MergingExchange::malformed(const Step& step, const char* wrong) {
  context_.fail(ErrorCode::transport,
                fmt::format("rank {} sent a malformed partial sum: {}", step.partner, wrong));
  return false;
}

bool MergingExchange::refuse(const Step& step, const TilePlace& place, const char* wrong) {
  context_.fail(ErrorCode::transport, fmt::format("rank {} sent a partial sum of operation {} slice {} that "
                                                  "can't be: {}",
                                                  step.partner, place.epoch, place.slice, wrong));
  return false;
}

// --- Contributions leave

/// Composes at most one message, so that it is on its way while the next one is composed.
bool MergingExchange::contribute() {
  if (!steps_.front().sender) return false;
  PartialSender& sender = *steps_.front().sender;
  bool any = false;
  while (!context_.failure && sender.room()) {
    Operation* const op = at(contributed_);
    if (op == nullptr) break;
    any = true;
    contribute_tile(*op, sender);
    if (!sender.open()) break;
  }
  sender.close();
  return any;
}

void MergingExchange::contribute_tile(Operation& op, PartialSender& sender) {
  const TilePlace place = contributed_.place;
  const trace::Span span(trace::What::push, place.epoch, place.slice);
  if (op.refusal) {
    sender.refuse(op, place, *op.refusal);
    return next_slice(contributed_, op);
  }
  const std::uint64_t empty = op.tile_input().empty_tiles(
      number_of(op, place), std::min(place.tiles - place.tile, wire::kMostEmptyTiles));
  if (empty > 0) {
    sender.put_empty_tiles(op, place, empty);
    if (!next_tile(contributed_, op, empty)) next_slice(contributed_, op);
    return;
  }
  const TilePart part = input_part(op, place, scratch_, true);
  sender.put_tile(op, place, coded(part, op.type(), place, scratch_), scratch_,
                  [&](std::byte* to) { copy_cold(to, part.values, part.count * element_bytes(op.type())); });
  if (!next_tile(contributed_, op)) next_slice(contributed_, op);
}

/// Returns what this rank itself holds of a tile. It `counts` what it is asked for first.
TilePart MergingExchange::input_part(Operation& op, const TilePlace& place, TileScratch& scratch,
                                     bool counts) {
  const auto part = op.tile_input().part(op.layout, number_of(op, place), scratch, scratch.values());
  assert(part);  // the scratch has room for all values
  if (counts) {
    op.input_blocks.fetch_add(TileBlocks(op.layout.block_units()).count(*part, place.shape.units(), scratch),
                              std::memory_order_relaxed);
  }
  return *part;
}

/// How a tile travels whose values are as they are, of this type.
CodedTile MergingExchange::coded(const TilePart& part, DataType type, const TilePlace& place,
                                 TileScratch& scratch) const {
  return code_tile(part, place.shape.units(), type, values_in(wire::ValueCode::as_is, type, part.count),
                   rules_, scratch);
}

// --- Partial sums are merged

/// Merges what is there, until that fills a message.
bool MergingExchange::merge(std::size_t step) {
  PartialSender* const out = out_of(step);
  bool any = false;
  while (!context_.failure && merge_tile(step)) {
    any = true;
    if (out != nullptr && !out->open()) break;
  }
  if (out != nullptr) out->close();
  return any;
}

/// Who gets what comes out of a step, or nullptr.
PartialSender* MergingExchange::out_of(std::size_t step) {
  if (!is_last(step)) return &*steps_[step + 1].sender;
  return result_ ? &*result_ : nullptr;
}

/// Returns false if nothing can be merged now.
bool MergingExchange::merge_tile(std::size_t number) {
  Step& step = steps_[number];
  if (is_last(number) && held_) return place_held();
  Operation* const op = at(step.merged);
  PartialSender* const out = out_of(number);
  if (op == nullptr || (out != nullptr && !out->room())) return false;
  const Next own = look_own(number, *op);
  if (own != Next::tile && own != Next::refusal) return false;
  const Next theirs = look_theirs(step, *op);
  if (theirs != Next::tile && theirs != Next::refusal) return false;
  if (own == Next::refusal || theirs == Next::refusal)
    return drop_tiles(number, *op, own == Next::tile, theirs == Next::tile);
  const std::uint64_t empty = std::min(own_empty_tiles(step, *op), step.theirs->tile().empty_tiles());
  if (empty > 0) return merge_empty(number, *op, empty), true;
  const trace::Span span(trace::What::reduce, op->epoch, step.merged.place.slice);
  const TilePart* const sum = unite(number, *op, is_last(number) ? result_sum_ : partial_sum_);
  if (sum == nullptr) return false;
  if (is_last(number)) {
    finish_tile(*op, step.merged.place, *sum);
  } else {
    pass_on(number, *op, step.merged.place, *sum);
  }
  advance_own(number);
  advance_theirs(step, *op);
  if (is_last(number)) return place_held(), true;
  go_on(number, *op);
  return true;
}

/// Goes on by so many tiles, and behind the last one to the next slice.
void MergingExchange::go_on(std::size_t number, Operation& op, std::uint64_t tiles) {
  Step& step = steps_[number];
  if (next_tile(step.merged, op, tiles)) return;
  if (is_last(number)) return end_slice(step, op);
  next_slice(step.merged, op);
}

/// How many tiles from the next one on are known to be empty in what this rank has summed so far.
std::uint64_t MergingExchange::own_empty_tiles(Step& step, const Operation& op) const {
  if (step.sender) return step.sender->kept().tile().empty_tiles();
  const TilePlace& place = step.merged.place;
  return op.tile_input().empty_tiles(number_of(op, place),
                                     std::min(place.tiles - place.tile, wire::kMostEmptyTiles));
}

/// Goes on behind tiles of which neither side has anything.
void MergingExchange::merge_empty(std::size_t number, Operation& op, std::uint64_t tiles) {
  Step& step = steps_[number];
  const TilePlace place = step.merged.place;
  if (PartialSender* const out = out_of(number)) out->put_empty_tiles(op, place, tiles);
  advance_own(number, tiles);
  advance_theirs(step, op, tiles);
  if (is_last(number)) {
    const std::uint64_t first = number_of(op, place);
    if (op.tile_output().needs_note(first)) op.tile_output().note(first, tiles, 0);
    op.tile_output().place_empty(first, tiles);
  }
  go_on(number, op, tiles);
}

/// A refusal comes in the place of a whole slice, so from then on there is nothing to look for.
TileQueue::Next MergingExchange::look_own(std::size_t number, const Operation& op) {
  Step& step = steps_[number];
  if (!step.sender && !step.own_refusal && op.refusal) step.own_refusal = *op.refusal;
  if (step.own_refusal) return Next::refusal;
  if (!step.sender) return Next::tile;
  TileQueue& kept = step.sender->kept();
  const Next next = kept.look(step.merged.place, type_of(op, step.own_partial));
  if (next == Next::refusal) {
    step.own_refusal = kept.refusal();
    advance_own(number);
  } else if (next == Next::wrong) {
    context_.fail(ErrorCode::internal,
                  fmt::format("a partial sum of this rank cannot be read: {}", kept.wrong()));
  }
  return next;
}

TileQueue::Next MergingExchange::look_theirs(Step& step, Operation& op) {
  if (step.their_refusal) return Next::refusal;
  const TilePlace& place = step.merged.place;
  const Next next = step.theirs->look(place, type_of(op, step.their_partial));
  if (next == Next::refusal) {
    step.their_refusal = step.theirs->refusal();
    advance_theirs(step, op);
  } else if (next == Next::wrong) {
    refuse(step, place, step.theirs->wrong());
  }
  return next;
}

/// Drops the tiles of a slice that a rank has refused. At its end, the refusal takes the place of the sum. Of
/// two it is that of the lower rank, so that all ranks tell the same.
bool MergingExchange::drop_tiles(std::size_t number, Operation& op, bool own_tile, bool their_tile) {
  Step& step = steps_[number];
  const std::uint64_t tiles = std::max<std::uint64_t>(1, own_tile     ? own_empty_tiles(step, op)
                                                         : their_tile ? step.theirs->tile().empty_tiles()
                                                                      : 0);
  if (own_tile) advance_own(number, tiles);
  if (their_tile) advance_theirs(step, op, tiles);
  if ((own_tile || their_tile) && next_tile(step.merged, op, tiles)) return true;
  const bool theirs =
      !step.own_refusal || (step.their_refusal && step.their_refusal->rank() < step.own_refusal->rank());
  const wire::Refusal refusal = theirs ? *step.their_refusal : *step.own_refusal;
  if (PartialSender* const out = out_of(number)) out->refuse(op, step.merged.place, refusal);
  step.own_refusal.reset();
  step.their_refusal.reset();
  if (!is_last(number)) {
    next_slice(step.merged, op);
  } else {
    op.slice_refused(step.merged.place.slice, refusal);
    end_slice(step, op);
  }
  return true;
}

/// Unites the partial sums of both sides, those of the lower ranks first. Returns nullptr after a failure.
const TilePart* MergingExchange::unite(std::size_t number, Operation& op, PartSum& sum) {
  Step& step = steps_[number];
  const DataType type = partial_type(op);
  sum.start(type, partial_op(op.reduce_op()), step.merged.place.shape);
  for (const bool theirs : {step.partner_first, !step.partner_first}) {
    auto part = theirs ? read(step, step.theirs->tile(), sum.next_scratch())
                       : own_part(number, op, sum.next_scratch());
    if (!part) return nullptr;
    // A contribution's values are in the tensor's type.
    const bool partial = theirs ? step.their_partial : step.own_partial;
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
std::optional<TilePart> MergingExchange::own_part(std::size_t number, Operation& op, TileScratch& scratch) {
  Step& step = steps_[number];
  const bool sent = step.sender.has_value();
  if (number > 0 || (sent && !op.tile_input().needs_no_scan()))
    return read(step, step.sender->kept().tile(), scratch);
  return input_part(op, step.merged.place, scratch, !sent);
}

/// Reads a tile. Returns nothing, after a failure, if its index set is malformed.
std::optional<TilePart> MergingExchange::read(const Step& step, const wire::Tile& tile,
                                              TileScratch& scratch) {
  auto part = read_part(tile, step.merged.place.shape, scratch);
  if (!part) refuse(step, step.merged.place, "its index set is malformed");
  return part;
}

/// Sums two partial sums into a message for the next step.
void MergingExchange::pass_on(std::size_t number, Operation& op, const TilePlace& place,
                              const TilePart& sum) {
  TileScratch& scratch = partial_sum_.scratch();
  steps_[number + 1].sender->put_tile(op, place, coded(sum, partial_type(op), place, scratch), scratch,
                                      [&](std::byte* to) { partial_sum_.write(to); });
}

/// Sums the last two partial sums to the result, sends it to the rank that gave its contribution to this one,
/// and holds it until it is placed.
void MergingExchange::finish_tile(Operation& op, const TilePlace& place, const TilePart& sum) {
  TileScratch& scratch = result_sum_.scratch();
  std::byte* const sums = scratch.values().data();
  result_sum_.write(sums);
  held_ = sum;
  std::byte* const values = partial_type(op) == op.type() ? sums : result_values_.get();
  finish_values(op.type(), op.reduce_op(), ranks_, sums, sum.count, values);
  held_->values = values;
  if (result_) {
    result_->put_tile(op, place, coded(*held_, op.type(), place, scratch), scratch, [&](std::byte* to) {
      std::memcpy(to, values, held_->count * element_bytes(op.type()));
    });
  }
  TileOutput& output = op.tile_output();
  const std::uint64_t tile = number_of(op, place);
  if (output.needs_note(tile))
    output.note(tile, 1, TileBlocks(op.layout.block_units()).count(*held_, place.shape.units(), scratch));
}

void MergingExchange::advance_own(std::size_t number, std::uint64_t tiles) {
  Step& step = steps_[number];
  if (!step.sender) return;
  if (const auto token = step.sender->kept().advance(tiles)) step.sender->release(*token);
}

void MergingExchange::advance_theirs(Step& step, Operation& op, std::uint64_t tiles) {
  if (const auto slot = step.theirs->advance(tiles))
    context_.channels(kPriority, step.partner).receive_up.release(*slot);
  op.add(op.bytes_received, step.theirs->take_bytes());
}

// --- Results

/// Places the result of the last step's tile. Returns false if it cannot be placed yet, because a packed
/// output's earlier blocks are not known.
bool MergingExchange::place_held() {
  Step& step = steps_.back();
  Operation& op = *at(step.merged);
  const TilePlace& place = step.merged.place;
  const std::uint64_t tile = number_of(op, place);
  if (!op.tile_output().placeable(tile, context_.config.lane)) return false;
  const trace::Span span(trace::What::result, op.epoch, place.slice);
  const std::uint64_t blocks =
      op.tile_output().place(tile, *held_, context_.config.lane, result_sum_.scratch());
  op.add(op.union_blocks, blocks);
  held_.reset();
  go_on(steps_.size() - 1, op);
  return true;
}

/// Places the next tile of the result that another rank sends. Returns false if there is none.
bool MergingExchange::place_received() {
  Step& step = steps_.front();
  Operation* const op = at(step.merged);
  if (op == nullptr) return false;
  const Next next = look_theirs(step, *op);
  if (next != Next::tile && next != Next::refusal) return false;
  const std::uint64_t tiles = next == Next::tile ? step.theirs->tile().tiles : 1;
  if (const char* wrong = wrong_with_early_result(contributed(step.merged.place, next, tiles)))
    return refuse(step, step.merged.place, wrong);
  if (next == Next::refusal) {
    op->slice_refused(step.merged.place.slice, *step.their_refusal);
    step.their_refusal.reset();
    end_slice(step, *op);
    return true;
  }
  const std::uint64_t tile = number_of(*op, step.merged.place);
  TileOutput& output = op->tile_output();
  const auto malformed_index = [&] { return refuse(step, step.merged.place, "its index set is malformed"); };
  if (output.needs_note(tile)) {
    const auto blocks = output.count(tile, step.theirs->tile(), scratch_);
    if (!blocks) return malformed_index();
    output.note(tile, tiles, *blocks);
  }
  if (step.theirs->tile().empty_tiles() > 0) {
    output.place_empty(tile, tiles);
    advance_theirs(step, *op, tiles);
    go_on(0, *op, tiles);
    return true;
  }
  if (!output.placeable(tile, context_.config.lane)) return false;
  const trace::Span span(trace::What::result, op->epoch, step.merged.place.slice);
  const auto blocks = output.place(tile, step.theirs->tile(), context_.config.lane, scratch_);
  if (!blocks) return malformed_index();
  op->add(op->union_blocks, *blocks);
  advance_theirs(step, *op);
  go_on(0, *op);
  return true;
}

/// Whether this rank has composed its contribution to what has come: to so many tiles, which the result may
/// overwrite, or to the whole slice, which a refusal ends.
bool MergingExchange::contributed(const TilePlace& place, Next next, std::uint64_t tiles) const {
  const TilePlace& at = contributed_.place;
  if (at.sequence != place.sequence) return at.sequence > place.sequence;
  return next == Next::tile && contributed_.begun && at.tile >= place.tile + tiles;
}

/// Ends the slice on this rank, and the operation with its last one, which may be deleted from then on.
void MergingExchange::end_slice(Step& step, Operation& op) {
  next_slice(step.merged, op);
  finished_ = step.merged.operation;
  op.slice_done();
}

bool MergingExchange::send() {
  bool any = false;
  for (Step& step : steps_) {
    if (step.sender) any |= step.sender->send();
  }
  if (result_) any |= result_->send();
  return any;
}

void MergingExchange::return_credits() {
  for (const Step& step : steps_) context_.return_credit(kPriority, Direction::up, step.partner);
}

// --- Failures and stalls

/// Whether anything of the oldest operation has come from the step's partner. Precondition: all of that has
/// been merged.
bool MergingExchange::has_begun(const Step& step) const {
  const TilePlace& next = step.merged.place;
  const Operation& op = *operations_[finished_ % kMaxOperations];
  return step.merged.begun && (next.tile > 0 || next.slice > slice_from(op, 0));
}

void MergingExchange::direct_arrived(std::uint16_t member, std::uint16_t) {
  refuse_direct_write(context_, member);
}

/// A rank sends the first slice of its contribution without waiting for anybody, so whoever has not begun
/// with that is known not to have joined. Those whose later slices or partial sums are missing may be waiting
/// themselves.
Stall MergingExchange::waiting_for() const {
  Stall stall;
  if (submitted_ == finished_) {
    for (const Step& step : steps_) {
      if (!step.theirs->empty())
        stall.known =
            fmt::format("rank {} has begun an operation: rank(s) {} did not join", step.partner, self_);
    }
    return stall;
  }
  const std::uint64_t epoch = operations_[finished_ % kMaxOperations]->epoch;
  std::string absent;
  for (const Step& step : steps_) {
    if (step.merged.operation != finished_ || !step.theirs->empty()) continue;
    if (!step.their_partial && !gives_ && !has_begun(step)) {
      append_item(absent, step.partner);
    } else {
      append_item(stall.suspected, fmt::format("{} (operation {}, slice {})", context_.name(step.partner),
                                               epoch, step.merged.begun ? step.merged.place.slice : 0));
    }
  }
  if (!absent.empty())
    stall.known = fmt::format("{}: rank(s) {} did not join", describe(context_, epoch), absent);
  return stall;
}

}  // namespace nzcl::engine
