#include "runtime/exchange/merging/merging_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/base/list_text.h"
#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/contributions/early_result.h"
#include "runtime/exchange/merging/partial_values.h"
#include "runtime/tile/tile_blocks.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Direction;

namespace {

constexpr auto kPriority = MergingStep::kPriority;
/// A merge is of two partial sums: this rank's own, and its partner's.
constexpr std::size_t kSides = 2;

}  // namespace

MergingExchange::MergingExchange(LaneContext& context)
    : context_(context),
      self_(context.config.members.self),
      gives_(MergingPlan(context.config.members.workers).gives(self_)),
      rules_{context.config.index_code, context.config.short_codes},
      list_rule_(context, kPriority),
      operations_{.lane = static_cast<std::uint32_t>(context.config.lane)},
      contributed_(operations_),
      scratch_(context.slot_bytes(kPriority)),
      partial_sum_(kSides, context.slot_bytes(kPriority)),
      result_sum_(kSides, context.slot_bytes(kPriority)),
      result_values_(new std::byte[context.slot_bytes(kPriority)]) {
  const MergingPlan plan(context.config.members.workers);
  const auto add = [&](int partner, bool exchanges) {
    steps_.emplace_back(context, plan, partner, exchanges, !gives_, operations_);
  };
  steps_.reserve(static_cast<std::size_t>(plan.partners(self_)));
  if (gives_) {
    add(self_ - 1, true);
  } else {
    if (plan.takes(self_)) add(self_ + 1, false);
    for (int round = 0; round < plan.rounds(); ++round) add(plan.partner(self_, round), true);
  }
  if (plan.takes(self_)) result_.emplace(context, static_cast<std::uint16_t>(self_ + 1), false, false);
}

void MergingExchange::submit(Operation& operation) {
  if (!operation.layout.on_lane(operations_.lane, static_cast<std::uint32_t>(context_.config.lanes))) return;
  waiting_[waited_++ % kMaxOperations] = &operation;
  admit();
}

/// Merging reads tiles wherever they are needed, so what is staged must be there before it begins.
void MergingExchange::admit() {
  for (; operations_.submitted < waited_; ++operations_.submitted) {
    Operation* const operation = waiting_[operations_.submitted % kMaxOperations];
    if (operation->input_is_staged() && !operation->ensure_all_staged()) return;
    operations_.latest[operations_.submitted % kMaxOperations] = operation;
  }
}

bool MergingExchange::step() {
  bool any = false;
  if (operations_.submitted < waited_) admit();
  for (MergingStep& step : steps_) any |= step.receive();
  any |= contribute();
  for (MergingStep& step : steps_) any |= merge(step);
  any |= send();
  for (const MergingStep& step : steps_) context_.return_credit(kPriority, Direction::up, step.partner());
  return any;
}

bool MergingExchange::idle() const {
  bool idle = waited_ == finished_ && (!result_ || result_->all_sent());
  for (const MergingStep& step : steps_)
    idle &= !step.has_messages() && (!step.sender || step.sender->all_sent());
  return idle;
}

// --- Contributions leave

/// Composes at most one message, so that it is on its way while the next one is composed.
bool MergingExchange::contribute() {
  if (!steps_.front().sender) return false;
  PartialSender& sender = *steps_.front().sender;
  bool any = false;
  while (!context_.failure && sender.room()) {
    Operation* const op = contributed_.operation();
    if (op == nullptr) break;
    any = true;
    contribute_tile(*op, sender);
    if (!sender.open()) break;
  }
  sender.close();
  return any;
}

void MergingExchange::contribute_tile(Operation& op, PartialSender& sender) {
  const TilePlace& place = contributed_.place();
  const trace::Span span(trace::What::push, place.epoch, place.slice);
  if (op.refusal) {
    sender.refuse(op, place, *op.refusal);
    return contributed_.next_slice();
  }
  const std::uint64_t tile = contributed_.tile();
  const OwnList list =
      merges_lists(context_.config) ? list_rule_.list(op, place.slice, place.tile) : OwnList();
  std::uint64_t tiles = 1;
  if (list.units.count > 0) {
    sender.put_list(op, place, list);
    tiles = list.tiles;
  } else if (const auto empty = op.tile_input().empty_tiles(tile, contributed_.most_empty()); empty > 0) {
    sender.put_empty_tiles(op, place, tiles = empty);
  } else {
    const TilePart part = input_part(op, tile, scratch_, true);
    sender.put_tile(op, place, coded(part, op.type(), place, scratch_), scratch_, [&](std::byte* to) {
      copy_cold(to, part.values, part.count * element_bytes(op.type()));
    });
  }
  if (!contributed_.next_tile(tiles)) contributed_.next_slice();
}

/// How a tile travels whose values are as they are, of this type.
CodedTile MergingExchange::coded(const TilePart& part, DataType type, const TilePlace& place,
                                 TileScratch& scratch) const {
  return code_tile(part, place.shape.units(), type, values_in(wire::ValueCode::as_is, type, part.count),
                   rules_, scratch);
}

// --- Partial sums are merged

/// Merges what is there, until that fills a message; or places what comes from a rank that merges for this
/// one.
bool MergingExchange::merge(MergingStep& step) {
  PartialSender* const out = out_of(step);
  bool any = false;
  while (!context_.failure && (gives_ ? place_received(step) : merge_tile(step))) {
    any = true;
    if (out != nullptr && !out->open()) break;
  }
  if (out != nullptr) out->close();
  return any;
}

/// Who gets what comes out of a step, or nullptr.
PartialSender* MergingExchange::out_of(const MergingStep& step) {
  if (!is_last(step)) return &*steps_[static_cast<std::size_t>(&step - steps_.data()) + 1].sender;
  return result_ ? &*result_ : nullptr;
}

/// Returns false if nothing can be merged now.
bool MergingExchange::merge_tile(MergingStep& step) {
  Operation* const op = step.merged.operation();
  if (is_last(step) && held_) return place_held(step, *op);
  PartialSender* const out = out_of(step);
  if (op == nullptr || (out != nullptr && !out->room())) return false;
  const Next own = step.look_own(*op);
  if (own != Next::tile && own != Next::refusal) return false;
  const Next theirs = step.look_theirs(*op);
  if (theirs != Next::tile && theirs != Next::refusal) return false;
  if (own == Next::refusal || theirs == Next::refusal)
    return drop_tiles(step, *op, own == Next::tile, theirs == Next::tile);
  const std::uint64_t empty = std::min(step.own_empty_tiles(*op), step.their_tile().empty_tiles());
  if (empty > 0) return merge_empty(step, *op, empty), true;
  if (const std::uint64_t tiles = step.listed_tiles(*op); tiles > 0) return merge_lists(step, *op, tiles);
  const TilePlace& place = step.merged.place();
  const trace::Span span(trace::What::reduce, op->epoch, place.slice);
  const TilePart* const sum = step.unite(*op, is_last(step) ? result_sum_ : partial_sum_);
  if (sum == nullptr) return false;
  if (is_last(step)) {
    finish_tile(*op, step, *sum);
  } else {
    pass_on(*op, place, *sum, *out);
  }
  step.advance_own();
  step.advance_theirs(*op);
  if (is_last(step)) return place_held(step, *op), true;
  go_on(step, *op);
  return true;
}

/// Goes on by so many tiles, and behind the last one to the next slice.
void MergingExchange::go_on(MergingStep& step, Operation& op, std::uint64_t tiles) {
  if (step.merged.next_tile(tiles)) return;
  if (is_last(step)) return end_slice(step, op);
  step.merged.next_slice();
}

/// Goes on behind tiles of which neither side has anything.
void MergingExchange::merge_empty(MergingStep& step, Operation& op, std::uint64_t tiles) {
  if (PartialSender* const out = out_of(step)) out->put_empty_tiles(op, step.merged.place(), tiles);
  step.advance_own(tiles);
  step.advance_theirs(op, tiles);
  if (is_last(step)) {
    const std::uint64_t first = step.merged.tile();
    if (op.tile_output().needs_note(first)) op.tile_output().note(first, tiles, 0);
    op.tile_output().place_empty(first, tiles);
  }
  go_on(step, op, tiles);
}

/// Drops the tiles of a slice that a rank has refused. At its end, the refusal takes the place of the sum.
bool MergingExchange::drop_tiles(MergingStep& step, Operation& op, bool own_tile, bool their_tile) {
  const std::uint64_t tiles = own_tile ? step.own_tiles(op) : their_tile ? step.their_tile().tiles : 1;
  if (own_tile) step.advance_own(tiles);
  if (their_tile) step.advance_theirs(op, tiles);
  if ((own_tile || their_tile) && step.merged.next_tile(tiles)) return true;
  const wire::Refusal refusal = step.take_refusal();
  if (PartialSender* const out = out_of(step)) out->refuse(op, step.merged.place(), refusal);
  if (!is_last(step)) return step.merged.next_slice(), true;
  op.slice_refused(step.merged.place().slice, refusal);
  end_slice(step, op);
  return true;
}

/// Merges the lists of several tiles into the output, which is the result. Returns false if they cannot be
/// placed yet, or after a failure.
bool MergingExchange::merge_lists(MergingStep& step, Operation& op, std::uint64_t tiles) {
  TileOutput& output = op.tile_output();
  const std::uint64_t tile = step.merged.tile();
  const int lane = context_.config.lane;
  if (!output.placeable(tile, lane)) return false;
  const trace::Span span(trace::What::reduce, op.epoch, step.merged.place().slice);
  const auto sum = step.sum_lists(op, tiles, result_sum_);
  if (!sum) return false;
  const std::size_t units = sum->offsets.size();
  if (output.needs_note(tile)) output.note(tile, tiles, units);  // where there are lists, units are blocks
  output.place_list(tile, tiles, *sum, lane, result_sum_.scratch());
  op.add(op.union_blocks, units);
  step.advance_own(tiles);
  step.advance_theirs(op, tiles);
  go_on(step, op, tiles);
  return true;
}

/// Sums two partial sums into a message for the next step.
void MergingExchange::pass_on(Operation& op, const TilePlace& place, const TilePart& sum,
                              PartialSender& out) {
  TileScratch& scratch = partial_sum_.scratch();
  out.put_tile(op, place, coded(sum, partial_type(op), place, scratch), scratch,
               [&](std::byte* to) { partial_sum_.write(to); });
}

/// Sums the last two partial sums to the result, sends it to the rank that gave its contribution to this one,
/// and holds it until it is placed.
void MergingExchange::finish_tile(Operation& op, const MergingStep& step, const TilePart& sum) {
  const TilePlace& place = step.merged.place();
  TileScratch& scratch = result_sum_.scratch();
  std::byte* const sums = scratch.values().data();
  result_sum_.write(sums);
  held_ = sum;
  std::byte* const values = partial_type(op) == op.type() ? sums : result_values_.get();
  finish_values(op.type(), op.reduce_op(), context_.config.members.workers, sums, sum.count, values);
  held_->values = values;
  if (result_) {
    result_->put_tile(op, place, coded(*held_, op.type(), place, scratch), scratch, [&](std::byte* to) {
      std::memcpy(to, values, held_->count * element_bytes(op.type()));
    });
  }
  TileOutput& output = op.tile_output();
  const std::uint64_t tile = step.merged.tile();
  if (output.needs_note(tile))
    output.note(tile, 1, TileBlocks(op.layout.block_units()).count(*held_, place.shape.units(), scratch));
}

// --- Results

/// Places the result of the last step's tile. Returns false if it cannot be placed yet, because a packed
/// output's earlier blocks are not known.
bool MergingExchange::place_held(MergingStep& step, Operation& op) {
  const std::uint64_t tile = step.merged.tile();
  if (!op.tile_output().placeable(tile, context_.config.lane)) return false;
  const trace::Span span(trace::What::result, op.epoch, step.merged.place().slice);
  const std::uint64_t blocks =
      op.tile_output().place(tile, *held_, context_.config.lane, result_sum_.scratch());
  op.add(op.union_blocks, blocks);
  held_.reset();
  go_on(step, op);
  return true;
}

/// Places the next tile of the result that another rank sends. Returns false if there is none.
bool MergingExchange::place_received(MergingStep& step) {
  Operation* const op = step.merged.operation();
  if (op == nullptr) return false;
  const Next next = step.look_theirs(*op);
  if (next != Next::tile && next != Next::refusal) return false;
  const TilePlace& place = step.merged.place();
  const std::uint64_t tiles = next == Next::tile ? step.their_tile().tiles : 1;
  if (const char* wrong = wrong_with_early_result(contributed(place, next, tiles))) return step.refuse(wrong);
  if (next == Next::refusal) {
    op->slice_refused(place.slice, step.take_refusal());
    end_slice(step, *op);
    return true;
  }
  const std::uint64_t tile = step.merged.tile();
  TileOutput& output = op->tile_output();
  const char* const malformed = "its index set is malformed";
  if (output.needs_note(tile)) {
    const auto blocks = output.count(tile, step.their_tile(), scratch_);
    if (!blocks) return step.refuse(malformed);
    output.note(tile, tiles, *blocks);
  }
  if (step.their_tile().empty_tiles() > 0) {
    output.place_empty(tile, tiles);
  } else {
    if (!output.placeable(tile, context_.config.lane)) return false;
    const trace::Span span(trace::What::result, op->epoch, place.slice);
    const auto blocks = output.place(tile, step.their_tile(), context_.config.lane, scratch_);
    if (!blocks) return step.refuse(malformed);
    op->add(op->union_blocks, *blocks);
  }
  step.advance_theirs(*op, tiles);
  go_on(step, *op, tiles);
  return true;
}

/// Whether this rank has composed its contribution to what has come: to so many tiles, which the result may
/// overwrite, or to the whole slice, which a refusal ends.
bool MergingExchange::contributed(const TilePlace& place, Next next, std::uint64_t tiles) const {
  const TilePlace& at = contributed_.place();
  if (at.sequence != place.sequence) return at.sequence > place.sequence;
  return next == Next::tile && contributed_.begun() && at.tile >= place.tile + tiles;
}

/// Ends the slice on this rank, and the operation with its last one, which may be deleted from then on.
void MergingExchange::end_slice(MergingStep& step, Operation& op) {
  const std::uint64_t slice = step.merged.place().slice;
  step.merged.next_slice();
  finished_ = step.merged.over();
  op.slice_done(slice);
}

bool MergingExchange::send() {
  bool any = false;
  for (MergingStep& step : steps_) {
    if (step.sender) any |= step.sender->send();
  }
  if (result_) any |= result_->send();
  return any;
}

// --- Failures and stalls

void MergingExchange::direct_arrived(std::uint16_t member, std::uint16_t) {
  refuse_direct_write(context_, member);
}

/// A rank sends the first slice of its contribution without waiting for anybody, so whoever has not begun
/// with that is known not to have joined. Those whose later slices or partial sums are missing may be waiting
/// themselves.
Stall MergingExchange::waiting_for() const {
  Stall stall;
  if (operations_.submitted == finished_) {
    for (const MergingStep& step : steps_) {
      if (step.has_messages())
        stall.known = fmt::format("rank {} has begun an operation: rank(s) {} did not join",
                                  context_.number(step.partner()), context_.number(self_));
    }
    return stall;
  }
  const std::uint64_t epoch = operations_.at(finished_).epoch;
  std::string absent;
  for (const MergingStep& step : steps_) {
    if (step.merged.over() != finished_ || step.has_messages()) continue;
    if (!step.their_partial() && !gives_ && !step.merged.is_behind_first()) {
      append_item(absent, context_.number(step.partner()));
    } else {
      const std::uint64_t slice = step.merged.begun() ? step.merged.place().slice : 0;
      append_item(stall.suspected,
                  fmt::format("{} (operation {}, slice {})", context_.name(step.partner()), epoch, slice));
    }
  }
  if (!absent.empty())
    stall.known = fmt::format("{}: rank(s) {} did not join", describe(context_, epoch), absent);
  return stall;
}

}  // namespace nzcl::engine
