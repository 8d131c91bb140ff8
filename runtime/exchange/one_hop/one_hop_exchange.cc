#include "runtime/exchange/one_hop/one_hop_exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/list_text.h"
#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/contributions/section_writer.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Priority;

namespace {

constexpr Priority kPriority = Priority::express;

std::vector<std::uint16_t> all_but(const Members& members) {
  std::vector<std::uint16_t> others;
  for (int i = 1; i < members.workers; ++i)
    others.push_back(static_cast<std::uint16_t>((members.self + i) % members.workers));
  return others;
}

}  // namespace

OneHopExchange::OneHopExchange(LaneContext& context)
    : context_(context),
      others_(all_but(context.config.members)),
      arrivals_(context),
      sum_(context.config.members.workers, context.slot_bytes(kPriority)),
      contributions_(static_cast<std::size_t>(context.config.members.workers)) {}

void OneHopExchange::submit(Operation& operation) {
  const auto lane = static_cast<std::uint32_t>(context_.config.lane);
  if (!operation.layout.on_lane(lane, static_cast<std::uint32_t>(context_.config.lanes))) return;
  waiting_[(first_waiting_ + waiting_count_++) % kMaxOperations] = &operation;
}

bool OneHopExchange::step() {
  bool any = arrivals_.receive();
  while (!context_.failure && may_send()) {
    send_next();
    any = true;
  }
  any |= sum();
  arrivals_.return_credits();
  return any;
}

// --- This rank's contributions

bool OneHopExchange::may_send() {
  return waiting_count_ > 0 && sent_ - finished_ < kOneHopWindow &&
         context_.pool(kPriority).available() > 0 && context_.outbox.room() >= others_.size() &&
         std::all_of(
             others_.begin(), others_.end(),
             [this](std::uint16_t rank) { return context_.channels(kPriority, rank).send_up.ready(); }) &&
         next().ensure_scanned(0);
}

void OneHopExchange::send_next() {
  Operation& op = next();
  first_waiting_ = (first_waiting_ + 1) % kMaxOperations;
  --waiting_count_;
  const std::uint64_t sequence = sent_++;

  StagingPool& pool = context_.pool(kPriority);
  const auto staging = pool.acquire();
  std::byte* const buffer = pool.buffer(staging);
  const std::uint64_t bytes = compose(op, sequence, staging);
  if (bytes == 0) {
    pool.release(staging);
    context_.fail(ErrorCode::internal, fmt::format("operation {} does not fit a slot of {} bytes", op.epoch,
                                                   context_.slot_bytes(kPriority)));
    return;
  }
  const verbs::Segment message{buffer, static_cast<std::uint32_t>(bytes), pool.region()};
  op.add(op.bytes_sent, others_.size() * message.bytes);
  for (const std::uint16_t rank : others_) {
    pool.add_reference(staging);
    context_.push_message(kPriority, Direction::up, rank, staging, {&message, 1});
  }
  const SliceView own = op.input_slice(0);
  running_[sequence % kOneHopWindow] = {
      &op, staging, {own.bits(), buffer + wire::kMaxOverhead + own.bits().size_bytes(), own.whole()}};
}

/// Writes this rank's contribution into the buffer. Returns the size of the message in bytes, or 0 if it does
/// not fit, which would be a fault of nzcl's own.
std::uint64_t OneHopExchange::compose(Operation& op, std::uint64_t sequence, StagingPool::Index staging) {
  const StagingPool& pool = context_.pool(kPriority);
  const std::uint64_t room = context_.slot_bytes(kPriority);
  if (!op.refusal && !op.input.sparse && op.input_slice(0).whole()) {
    LaneStatistics::add(context_.statistics.bytes_copied, op.layout.tensor_bytes());
    SlotWriter message(pool.buffer(staging), room);
    return write_tensor(message, op, sequence) ? message.bytes() : 0;
  }
  MessageBuilder message({.segments = 1, .bytes = room}, pool.buffer(staging), pool.region());
  Contribution contribution(op, 0, sequence);
  if (!write_section(message, contribution, {.bitmap = true, .data = true}) ||
      !(op.refusal || contribution.sent()))
    return 0;
  LaneStatistics::add(context_.statistics.bytes_copied, message.copied());
  return message.bytes();
}

// --- Sums

/// Sums what is complete. Returns true if anything moved.
bool OneHopExchange::sum() {
  bool any = false;
  while (!context_.failure && sent_ > finished_ && arrivals_.complete()) {
    sum_oldest();
    any = true;
  }
  return any;
}

void OneHopExchange::sum_oldest() {
  const auto self = static_cast<std::size_t>(context_.config.members.self);
  const Running& running = oldest();
  Operation& op = *running.operation;
  contributions_[self] = running.own;
  if (!arrivals_.check(op, contributions_)) return;
  const auto theirs = arrivals_.refusal();
  const wire::Refusal* refusal = op.refusal.get();
  if (theirs && (refusal == nullptr || theirs->rank() < refusal->rank())) refusal = &*theirs;
  if (refusal != nullptr) {
    op.slice_refused(0, *refusal);
  } else {
    sum_.sum(op, contributions_);
  }
  arrivals_.release();
  context_.pool(kPriority).release(running.staging);
  ++finished_;
  op.slice_done();  // last, because the operation may be deleted from here on
}

// --- Failures and stalls

void OneHopExchange::direct_arrived(std::uint16_t member, std::uint16_t) {
  context_.fail(
      ErrorCode::transport,
      fmt::format("{} announced a direct write, but sums nothing for this rank", context_.name(member)));
}

Stall OneHopExchange::waiting_for() const {
  Stall stall;
  const bool joined = sent_ > finished_;
  if (joined || !arrivals_.empty()) {
    const std::string absent = arrivals_.absent(!joined && waiting_count_ == 0);
    const std::uint64_t epoch = joined ? oldest().operation->epoch : arrivals_.some_epoch();
    if (!absent.empty())
      stall.known = fmt::format("{}: rank(s) {} did not join", describe(context_, epoch), absent);
  }
  if (joined || waiting_count_ == 0) return stall;
  for (const std::uint16_t rank : others_) {  // those that return no credits
    const auto& sets = context_.channel_sets[static_cast<std::size_t>(kPriority)];
    if (sets[rank].send_up.ready()) continue;
    append_item(stall.suspected,
                fmt::format("{} (operation {}, slice 0)", context_.name(rank), next().epoch));
  }
  return stall;
}

}  // namespace nzcl::engine
