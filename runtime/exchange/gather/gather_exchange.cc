#include "runtime/exchange/gather/gather_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include "runtime/base/list_text.h"
#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/contributions/section_writer.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Priority;

GatherExchange::GatherExchange(LaneContext& context, Priority priority, const Schedule& schedule)
    : context_(context),
      priority_(priority),
      ranks_(context.config.members.workers),
      arrivals_(context, priority, schedule),
      sum_(ranks_, context.slot_bytes(priority)) {
  for (const Leg& leg : schedule) {
    const int to = (context.config.members.self + leg.distance) % ranks_;
    legs_.push_back({.leg = leg, .to = static_cast<std::uint16_t>(to)});
  }
}

void GatherExchange::submit(Operation& operation) {
  const auto lane = static_cast<std::uint32_t>(context_.config.lane);
  if (!operation.layout.on_lane(lane, static_cast<std::uint32_t>(context_.config.lanes))) return;
  waiting_[(first_waiting_ + waiting_count_++) % kMaxOperations] = &operation;
}

bool GatherExchange::step() {
  bool any = arrivals_.receive();
  while (!context_.failure && may_start()) {
    start_next();
    any = true;
  }
  check();
  any |= send();
  any |= sum();
  arrivals_.return_credits();
  return any;
}

/// Messages of the other ranks are about as long as this rank's own.
void GatherExchange::expect_messages() const {
  if (finished_ == started_) return;
  for (std::size_t leg = 0; leg < legs_.size(); ++leg) {
    if (arrivals_.checked(leg) == finished_)
      arrivals_.prefetch_next(leg, running(finished_).bytes + wire::kSealBytes);
  }
}

// --- This rank's contributions

bool GatherExchange::may_start() const {
  return waiting_count_ > 0 && started_ - finished_ < kGatherWindow && free_buffers() > 0 &&
         next().ensure_scanned(0);
}

void GatherExchange::start_next() {
  Operation& op = next();
  first_waiting_ = (first_waiting_ + 1) % kMaxOperations;
  --waiting_count_;
  const std::uint64_t sequence = started_;
  StagingPool& pool = context_.pool(priority_);
  const auto staging = pool.acquire();
  const SliceView own = op.input_slice(0);
  const bool whole = own.whole();
  const std::uint64_t bytes = compose(op, whole, sequence, staging);
  if (bytes == 0) {
    pool.release(staging);
    context_.fail(ErrorCode::internal, fmt::format("operation {} does not fit a slot of {} bytes", op.epoch,
                                                   context_.slot_bytes(priority_)));
    return;
  }
  const std::uint64_t before = wire::kMaxOverhead + own.bits().size_bytes();
  arrivals_.contributions(sequence)[static_cast<std::size_t>(context_.config.members.self)] = {
      .bits = own.bits(),
      .stream = pool.buffer(staging) + before,
      .stream_bytes = static_cast<std::uint32_t>(bytes - before),
      .refusal_code = op.refusal ? op.refusal->code() : std::uint16_t{0},
      .whole = whole};
  running(sequence) = {&op, staging, static_cast<std::uint32_t>(bytes)};
  ++started_;
}

/// Writes the message with this rank's own contribution into the buffer. Returns its size in bytes, or 0 if
/// it does not fit, which would be a fault of nzcl's own. `whole` says that all blocks of the input are
/// there.
std::uint64_t GatherExchange::compose(Operation& op, bool whole, std::uint64_t sequence,
                                      StagingPool::Index staging) {
  const StagingPool& pool = context_.pool(priority_);
  const std::uint64_t room = context_.slot_bytes(priority_);
  if (!op.refusal && !op.input.sparse && whole) {
    LaneStatistics::add(context_.statistics.bytes_copied, op.layout.tensor_bytes());
    SlotWriter message(pool.buffer(staging), room);
    return write_tensor(message, op, sequence) ? message.bytes() : 0;
  }
  MessageBuilder message({.segments = 1, .bytes = room}, pool.buffer(staging), pool.region());
  Contribution contribution(op, 0, sequence);
  if (write_section(message, contribution, {.bitmap = true, .data = true}) == 0 ||
      !(op.refusal || contribution.sent()))
    return 0;
  LaneStatistics::add(context_.statistics.bytes_copied, message.copied());
  return message.bytes();
}

/// Checks what has arrived for the operations that have begun here.
void GatherExchange::check() {
  for (std::size_t leg = 0; leg < legs_.size(); ++leg) {
    while (!context_.failure && arrivals_.checked(leg) < started_ &&
           arrivals_.check(leg, *running(arrivals_.checked(leg)).operation)) {
    }
  }
}

// --- Messages leave

bool GatherExchange::send() {
  bool any = false;
  for (Outgoing& out : legs_) {
    while (!context_.failure && may_send(out)) {
      if (out.leg.contributions == 1) {
        send_own(out);
      } else {
        send_with_others(out);
      }
      any = true;
    }
  }
  return any;
}

/// The messages of a leg leave in the order of the operations, each when what it passes on has arrived.
bool GatherExchange::may_send(const Outgoing& out) const {
  if (out.sent == started_ || !ready(out) || context_.outbox.room() == 0) return false;
  return out.leg.contributions == 1 || (free_buffers() > 0 && has_arrived(out.leg.contributions, out.sent));
}

/// Returns true if so many contributions, from this rank's own on backwards, can be passed on.
bool GatherExchange::has_arrived(int contributions, std::uint64_t sequence) const {
  for (std::size_t leg = 0; leg < legs_.size() && legs_[leg].leg.distance < contributions; ++leg) {
    if (arrivals_.checked(leg) <= sequence) return false;
  }
  return true;
}

/// Sends what is only this rank's own. It leaves from one buffer, to however many ranks.
void GatherExchange::send_own(Outgoing& out) {
  const Running& run = running(out.sent++);
  StagingPool& pool = context_.pool(priority_);
  pool.add_reference(run.staging);
  const verbs::Segment message{pool.buffer(run.staging), run.bytes, pool.region()};
  run.operation->add(run.operation->bytes_sent, message.bytes);
  context_.push_message(priority_, Direction::up, out.to, run.staging, {&message, 1});
}

/// Sends this rank's own contribution, and behind it those that the leg passes on.
void GatherExchange::send_with_others(Outgoing& out) {
  const std::uint64_t sequence = out.sent++;
  const Running& run = running(sequence);
  StagingPool& pool = context_.pool(priority_);
  const auto staging = pool.acquire();
  SlotWriter message(pool.buffer(staging), context_.slot_bytes(priority_));
  if (!message.put(pool.buffer(run.staging), run.bytes) || !put_others(message, out.leg, sequence)) {
    pool.release(staging);
    context_.fail(ErrorCode::internal,
                  fmt::format("the contributions of {} ranks to operation {} do not fit a slot of {} bytes",
                              out.leg.contributions, run.operation->epoch, context_.slot_bytes(priority_)));
    return;
  }
  wire::add_flag(message.begin(), wire::kMore);
  run.operation->add(run.operation->bytes_sent, message.bytes());
  const verbs::Segment segment{message.begin(), static_cast<std::uint32_t>(message.bytes()), pool.region()};
  context_.push_message(priority_, Direction::up, out.to, staging, {&segment, 1});
}

/// The lowest rank of those whose refusal a leg passes on; -1 if there is none. In the end every rank tells
/// the reason of the lowest one of all, so only that of this one goes along.
int GatherExchange::lowest_refused(const Leg& leg, std::uint64_t sequence) {
  int lowest = -1;
  for (int distance = 1; distance < leg.contributions; ++distance) {
    const int rank = (context_.config.members.self - distance + ranks_) % ranks_;
    const bool refused = arrivals_.contributions(sequence)[static_cast<std::size_t>(rank)].refusal_code != 0;
    if (refused && (lowest < 0 || rank < lowest)) lowest = rank;
  }
  return lowest;
}

/// Writes the batch of what a leg passes on. Returns false if it does not fit.
bool GatherExchange::put_others(SlotWriter& message, const Leg& leg, std::uint64_t sequence) {
  const auto align = [&] { return message.fill_up_to(wire::aligned_section(message.bytes())); };
  wire::Header header{
      .flags = wire::kBatch, .epoch = running(sequence).operation->epoch, .sequence = sequence};
  header.entries = static_cast<std::uint16_t>(leg.contributions - 1);
  std::byte* const header_at = align() ? message.take(sizeof header) : nullptr;
  const std::uint64_t begin = message.bytes();
  bool fits = header_at != nullptr;
  const int told = lowest_refused(leg, sequence);
  for (int distance = 1; fits && distance < leg.contributions; ++distance) {
    const int rank = (context_.config.members.self - distance + ranks_) % ranks_;
    const WholeContribution& c = arrivals_.contributions(sequence)[static_cast<std::size_t>(rank)];
    const std::uint32_t bytes = c.refusal_code == 0 || rank == told ? c.stream_bytes : 0;
    const wire::BatchEntry entry{.payload_bytes = bytes, .refusal_code = c.refusal_code};
    fits = message.put(&entry, sizeof entry) && message.put(c.bits.data(), c.bits.size_bytes()) &&
           message.put(c.stream, bytes) && align();
  }
  if (!fits) return false;
  header.payload_bytes = static_cast<std::uint32_t>(message.bytes() - begin);
  std::memcpy(header_at, &header, sizeof header);
  return true;
}

// --- Sums

/// Sums what is complete. Returns true if anything moved.
bool GatherExchange::sum() {
  bool any = false;
  while (!context_.failure && finished_ < started_ && complete(finished_)) {
    sum_oldest();
    any = true;
  }
  return any;
}

/// Returns true if all contributions to an operation are here, and its last message has left.
bool GatherExchange::complete(std::uint64_t sequence) const {
  for (std::size_t leg = 0; leg < legs_.size(); ++leg) {
    if (arrivals_.checked(leg) <= sequence || legs_[leg].sent <= sequence) return false;
  }
  return true;
}

void GatherExchange::sum_oldest() {
  const std::uint64_t sequence = finished_;
  const Running run = running(sequence);
  Operation& op = *run.operation;
  const auto contributions = arrivals_.contributions(sequence);
  // Of several refusals it is that of the lowest rank, so that all ranks tell the same.
  const auto refused = std::find_if(contributions.begin(), contributions.end(),
                                    [](const WholeContribution& c) { return c.refusal_code != 0; });
  if (refused != contributions.end()) {
    op.slice_refused(
        0, {static_cast<std::uint16_t>(refused - contributions.begin()), refused->refusal_code,
            std::string_view{reinterpret_cast<const char*>(refused->stream), refused->stream_bytes}});
  } else {
    sum_.sum(op, contributions);
  }
  arrivals_.release(sequence);
  context_.pool(priority_).release(run.staging);
  ++finished_;
  op.slice_done(0);  // last, because the operation may be deleted from here on
}

// --- Failures and stalls

void GatherExchange::direct_arrived(std::uint16_t member, std::uint16_t) {
  refuse_direct_write(context_, member);
}

/// A message with nothing but its sender's own contribution needs nobody else, so whoever has not sent it is
/// known not to have joined. Those whose other messages are missing may be waiting themselves.
Stall GatherExchange::waiting_for() const {
  Stall stall;
  const bool joined = finished_ < started_;
  const bool called = joined || waiting_count_ > 0;
  if (!called && !arrivals_.early()) return stall;
  const std::uint64_t epoch = joined   ? running(finished_).operation->epoch
                              : called ? next().epoch
                                       : arrivals_.early_epoch();
  std::set<int> absent, suspects;
  if (!called) absent.insert(context_.config.members.self);
  for (std::size_t leg = 0; leg < legs_.size() && (joined || arrivals_.early()); ++leg) {
    if (arrivals_.checked(leg) > finished_ || arrivals_.early(leg)) continue;
    (legs_[leg].leg.contributions == 1 ? absent : suspects).insert(arrivals_.sender(leg));
  }
  for (const Outgoing& out : legs_) {  // those that return no credits
    if (called && out.sent == finished_ && !ready(out)) suspects.insert(out.to);
  }
  std::string list;
  for (const int rank : absent) append_item(list, context_.number(rank));
  if (!list.empty())
    stall.known = fmt::format("{}: rank(s) {} did not join", describe(context_, epoch), list);
  for (const int rank : suspects)
    append_item(stall.suspected, fmt::format("{} (operation {}, slice 0)", context_.name(rank), epoch));
  return stall;
}

}  // namespace nzcl::engine
