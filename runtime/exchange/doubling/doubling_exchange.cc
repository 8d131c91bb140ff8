#include "runtime/exchange/doubling/doubling_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/list_text.h"
#include "runtime/plan/doubling_rounds.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Priority;

namespace {

constexpr Priority kPriority = Priority::doubling;

std::size_t index_of(int round) { return static_cast<std::size_t>(round); }

}  // namespace

DoublingExchange::DoublingExchange(LaneContext& context)
    : context_(context),
      ranks_(context.config.members.workers),
      own_bytes_(doubling_bytes(context.config) + sizeof(wire::BatchEntry)),
      intake_(context, kPriority),
      sum_(context, kPriority, intake_),
      rounds_(index_of(doubling_rounds(ranks_))),
      held_(kWindow * rounds_.size()),
      ends_(kWindow * index_of(ranks_)),
      own_(new std::byte[kWindow * own_bytes_]) {
  const int self = context.config.members.self;
  for (std::size_t k = 0; k < rounds_.size(); ++k) {
    const int distance = 1 << k;
    rounds_[k].to = static_cast<std::uint16_t>((self + distance) % ranks_);
    rounds_[k].from = static_cast<std::uint16_t>((self - distance + ranks_) % ranks_);
    rounds_[k].entries = entries_in_round(ranks_, static_cast<int>(k));
  }
}

void DoublingExchange::submit(Operation& operation) {
  const auto lane = static_cast<std::uint32_t>(context_.config.lane);
  if (!operation.layout.on_lane(lane, static_cast<std::uint32_t>(context_.config.lanes))) return;
  waiting_[(first_waiting_ + waiting_count_++) % kMaxOperations] = &operation;
}

bool DoublingExchange::step() {
  bool any = receive();
  any |= start();
  any |= send();
  any |= sum();
  return_credits();
  return any;
}

// --- Batches arrive

bool DoublingExchange::receive() {
  bool any = false;
  for (int k = 0; k < static_cast<int>(rounds_.size()); ++k) {
    ReceiveChannel& channel = context_.channels(kPriority, rounds_[index_of(k)].from).receive_up;
    while (!context_.failure) {
      const ReceiveChannel::Received message = channel.pop();
      if (message.data == nullptr || !take(k, message)) break;
      any = true;
    }
  }
  return any;
}

/// Takes the batch of a round, whose first contribution is its sender's own. They are those of the ranks in
/// front of the sender, one after the other, and stay in the slot until the operation is over.
bool DoublingExchange::take(int round, const ReceiveChannel::Received& message) {
  const Round& r = rounds_[index_of(round)];
  const char* wrong = nullptr;
  const auto batch = wire::read_batch({message.data, context_.slot_bytes(kPriority)}, wrong);
  if (!batch) return malformed(round, wrong);
  if (batch->header.entries != r.entries)
    return malformed(round, "it is not of as many ranks as it should be");
  const std::uint64_t sequence = batch->header.sequence;
  wire::EntryReader entries(*batch);
  for (int i = 0; i < r.entries; ++i) {
    const auto entry = entries.next();
    if (!entry) return malformed(round, entries.wrong());
    const int rank = (r.from - i + ranks_) % ranks_;
    if (!intake_.offer(r.from, rank, *batch, *entry)) return false;
    end_of(sequence, (1 << round) + i) = static_cast<std::uint32_t>(entry->end);
  }
  if (!entries.at_end()) return malformed(round, "it has bytes behind its last contribution");
  LaneStatistics::add(context_.statistics.bytes_received, wire::kMaxOverhead + batch->payload.size());
  held(sequence, index_of(round)) = {batch->payload.data(), message.slot};
  return true;
}

bool DoublingExchange::malformed(int round, const char* wrong) {
  context_.fail(ErrorCode::transport,
                fmt::format("rank {} sent a malformed batch: {}", rounds_[index_of(round)].from, wrong));
  return false;
}

// --- This rank's contributions

/// Starts the operations that fit the window. The own contribution is copied, because an operation in place
/// overwrites it before its last batch has left.
bool DoublingExchange::start() {
  bool any = false;
  while (!context_.failure && waiting_count_ > 0 && started_ - finished_ < kDoublingWindow &&
         next().ensure_scanned(0)) {
    Operation& op = next();
    first_waiting_ = (first_waiting_ + 1) % kMaxOperations;
    --waiting_count_;
    const std::uint64_t sequence = started_++;
    const trace::Span span(trace::What::push, op.epoch, 0);
    MessageBuilder entry({.segments = 1, .bytes = own_bytes_}, own_entry(sequence), nullptr);
    Contribution contribution(op, 0, sequence);
    if (!write_entry(entry, contribution)) {
      context_.fail(ErrorCode::internal,
                    fmt::format("operation {} does not fit an entry of {} bytes", op.epoch, own_bytes_));
      return true;
    }
    LaneStatistics::add(context_.statistics.bytes_copied, entry.copied());
    end_of(sequence, 0) = static_cast<std::uint32_t>(entry.staged());
    operations_[place(sequence)] = &op;
    intake_.offer_local(sequence, &op, 0);
    any = true;
  }
  return any;
}

// --- Batches leave

bool DoublingExchange::send() {
  bool any = false;
  for (int k = 0; k < static_cast<int>(rounds_.size()); ++k) {
    while (!context_.failure && may_send(k)) {
      send_batch(k);
      any = true;
    }
  }
  return any;
}

/// The batches of a round leave in the order of the operations, each when what it passes on has arrived.
bool DoublingExchange::may_send(int round) const {
  const Round& r = rounds_[index_of(round)];
  if (r.sent == started_ ||
      !context_.channel_sets[static_cast<std::size_t>(kPriority)][r.to].send_up.ready() ||
      context_.staging[static_cast<std::size_t>(kPriority)].available() == 0 || context_.outbox.room() == 0)
    return false;
  for (std::size_t k = 0; k < index_of(round) && r.entries > 1 << k; ++k) {  // those that are part of it
    if (held(r.sent, k).entries == nullptr) return false;
  }
  return true;
}

void DoublingExchange::send_batch(int round) {
  Round& r = rounds_[index_of(round)];
  const std::uint64_t sequence = r.sent++;
  Operation& op = *operations_[place(sequence)];
  StagingPool& pool = context_.pool(kPriority);
  const auto staging = pool.acquire();
  MessageBuilder message({.segments = 1, .bytes = context_.slot_bytes(kPriority)}, pool.buffer(staging),
                         pool.region());
  std::byte* const fixed = message.reserve(wire::kMaxOverhead);
  bool fits = fixed != nullptr && message.put(own_entry(sequence), end_of(sequence, 0));
  for (int k = 0; k < round; ++k) {  // of what came in the last one of these rounds, maybe only a part
    const int distance = 1 << k, part = std::min(distance, r.entries - distance);
    if (part > 0)
      fits = fits && message.put(held(sequence, index_of(k)).entries, end_of(sequence, distance + part - 1));
  }
  if (!fits) {
    pool.release(staging);
    context_.fail(ErrorCode::internal,
                  fmt::format("the contributions of {} ranks to operation {} do not fit a slot of {} bytes",
                              r.entries, op.epoch, context_.slot_bytes(kPriority)));
    return;
  }
  const wire::OperationRecord record = op.record_of(0);
  wire::Header header{.flags = wire::kHasBitmap | wire::kBatch, .epoch = op.epoch, .sequence = sequence};
  header.bitmap_bytes = static_cast<std::uint32_t>(op.input_slice(0).bits().size_bytes());
  header.payload_bytes = static_cast<std::uint32_t>(message.staged() - wire::kMaxOverhead);
  header.entries = static_cast<std::uint16_t>(r.entries);
  std::memcpy(fixed, &header, sizeof header);
  std::memcpy(fixed + sizeof header, &record, sizeof record);
  op.add(op.bytes_sent, message.bytes());
  context_.push_message(kPriority, Direction::up, r.to, staging, message.segments());
}

// --- Sums

/// An operation is summed when all contributions are here and its last batch has left.
bool DoublingExchange::sum() {
  bool any = false;
  while (!context_.failure) {
    IncomingSlice* slice = intake_.complete();
    if (slice == nullptr || !all_sent(slice->sequence)) break;
    sum_.sum(*slice);
    if (!sum_.done()) break;
    release_slots(slice->sequence);
    sum_.finish();
    ++finished_;
    any = true;
  }
  return any;
}

bool DoublingExchange::all_sent(std::uint64_t sequence) const {
  return std::all_of(rounds_.begin(), rounds_.end(), [&](const Round& r) { return r.sent > sequence; });
}

void DoublingExchange::release_slots(std::uint64_t sequence) {
  for (std::size_t k = 0; k < rounds_.size(); ++k) {
    context_.channels(kPriority, rounds_[k].from).receive_up.release(held(sequence, k).slot);
    held(sequence, k) = {};
  }
}

void DoublingExchange::return_credits() {
  for (const Round& r : rounds_) context_.return_credit(kPriority, Direction::up, r.from);
}

// --- Failures and stalls

void DoublingExchange::direct_arrived(std::uint16_t member, std::uint16_t) {
  context_.fail(
      ErrorCode::transport,
      fmt::format("{} announced a direct write, but sums nothing for this rank", context_.name(member)));
}

/// A rank's first batch needs nobody else, so whoever has not sent it is known not to have joined. Those
/// whose later batches are missing may be waiting themselves.
Stall DoublingExchange::waiting_for() const {
  Stall stall;
  const IncomingSlice& s = intake_.oldest();
  if (!s.active) return stall;
  std::string absent;
  if (s.local == nullptr) absent = std::to_string(context_.config.members.self);
  if (held(s.sequence, 0).entries == nullptr) append_item(absent, rounds_.front().from);
  if (!absent.empty()) stall.known = fmt::format("{}: rank(s) {} did not join", intake_.describe(s), absent);
  const auto suspect = [&](std::uint16_t rank) {
    append_item(stall.suspected, fmt::format("{} (operation {}, slice 0)", context_.name(rank), s.epoch));
  };
  for (std::size_t k = 1; k < rounds_.size(); ++k) {
    if (held(s.sequence, k).entries == nullptr) suspect(rounds_[k].from);
  }
  for (const Round& r : rounds_) {  // those that return no credits
    const auto& sets = context_.channel_sets[static_cast<std::size_t>(kPriority)];
    if (r.sent <= s.sequence && r.sent < started_ && !sets[r.to].send_up.ready()) suspect(r.to);
  }
  return stall;
}

}  // namespace nzcl::engine
