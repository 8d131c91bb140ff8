#include "runtime/exchange/one_hop/one_hop_exchange.h"

#include <fmt/format.h>

#include <algorithm>

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
      intake_(context, kPriority),
      sum_(context, kPriority, intake_) {}

void OneHopExchange::submit(Operation& operation) {
  const auto lane = static_cast<std::uint32_t>(context_.config.lane);
  if (!operation.layout.on_lane(lane, static_cast<std::uint32_t>(context_.config.lanes))) return;
  waiting_[(first_waiting_ + waiting_count_++) % kMaxOperations] = &operation;
}

bool OneHopExchange::step() {
  bool any = intake_.receive();
  while (!context_.failure && may_send()) {
    send_next();
    any = true;
  }
  any |= sum();
  intake_.return_credits();
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
  MessageBuilder message({.segments = 1, .bytes = context_.slot_bytes(kPriority)}, pool.buffer(staging),
                         pool.region());
  Contribution contribution(op, 0, sequence);
  const WrittenSection section = write_section(message, contribution, {.bitmap = true, .data = true});
  LaneStatistics::add(context_.statistics.bytes_copied, message.copied());
  op.bytes_sent.fetch_add(others_.size() * section.bytes, std::memory_order_relaxed);
  for (const std::uint16_t rank : others_) {
    pool.add_reference(staging);
    context_.push_message(kPriority, Direction::up, rank, staging, message.segments());
  }
  pool.release(staging);
  intake_.offer_local(sequence, &op, 0);
}

// --- Sums

/// Sums what is complete. Returns true if anything moved.
bool OneHopExchange::sum() {
  bool any = false;
  while (!context_.failure) {
    IncomingSlice* slice = intake_.complete();
    if (slice == nullptr) break;
    any |= sum_.sum(*slice);
    if (!sum_.done()) break;
    sum_.finish();
    ++finished_;
    any = true;
  }
  return any;
}

// --- Failures and stalls

void OneHopExchange::direct_arrived(std::uint16_t member, std::uint16_t) {
  context_.fail(
      ErrorCode::transport,
      fmt::format("{} announced a direct write, but sums nothing for this rank", context_.name(member)));
}

Stall OneHopExchange::waiting_for() const {
  Stall stall;
  stall.known = intake_.waiting_for(sum_.holders());
  if (sent_ != finished_ || waiting_count_ == 0) return stall;
  for (const std::uint16_t rank : others_) {  // those that return no credits
    const auto& sets = context_.channel_sets[static_cast<std::size_t>(kPriority)];
    if (sets[rank].send_up.ready()) continue;
    stall.suspected += fmt::format("{}{} (operation {}, slice 0)", stall.suspected.empty() ? "" : ", ",
                                   context_.name(rank), next().epoch);
  }
  return stall;
}

}  // namespace nzcl::engine
