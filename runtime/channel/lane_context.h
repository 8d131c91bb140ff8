// What all exchanges of one lane share: channels, staging buffers, the outbox, counters, and the first
// failure.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/channel/channel.h"
#include "runtime/channel/outbox.h"
#include "runtime/channel/staging.h"
#include "runtime/channel/staging_banks.h"
#include "runtime/channel/staging_way.h"
#include "runtime/plan/engine_config.h"
#include "runtime/wire/refusal.h"

namespace nzcl::engine {

/// Counters of one lane. Its driver writes them, and any thread may read them.
struct LaneStatistics {
  std::atomic<std::uint64_t> messages_sent{0}, bytes_sent{0}, bytes_received{0}, bytes_copied{0};
  /// There is only one writer at a time, so a load and a store are enough. They are cheaper than an atomic
  /// addition.
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
};

/// What any thread may read of a StagingWay.
struct StagingSeen {
  std::atomic<float> cached_ns{0}, streamed_ns{0};  // to read one KiB; 0: never measured
  std::atomic<bool> streamed{false};
  void publish(const StagingWay& way) {
    cached_ns.store(static_cast<float>(way.read_ns(false)), std::memory_order_relaxed);
    streamed_ns.store(static_cast<float>(way.read_ns(true)), std::memory_order_relaxed);
    streamed.store(way.streamed(), std::memory_order_relaxed);
  }
};

/// How a lane stores what it lends, over all members. Times are sums over those that were `measured`.
struct StagingSummary {
  int members = 0, measured = 0, streamed = 0;
  double cached_ns = 0, streamed_ns = 0;
};

/// The channels of one priority between this member and another one. A channel that the roles of the two do
/// not need has no slots.
struct ChannelSet {
  SendChannel send_up, send_down;
  ReceiveChannel receive_up, receive_down;

  SendChannel& send(wire::Direction d) { return d == wire::Direction::up ? send_up : send_down; }
  ReceiveChannel& receive(wire::Direction d) { return d == wire::Direction::up ? receive_up : receive_down; }
};

/// What the first rank said about an operation. The other ranks must say the same.
struct KnownOperation {
  bool valid = false;
  std::uint64_t epoch = 0;
  int rank = 0;
  wire::OperationRecord record;
  const wire::Refusal* refusal = nullptr;  // that rank's, in LaneContext::refusals, if it has refused
};

/// What the exchanges of one lane share. Only the thread that drives the lane touches it; any thread may read
/// the statistics.
struct LaneContext {
  explicit LaneContext(const EngineConfig& engine_config)
      : config(engine_config),
        staging_ways(static_cast<std::size_t>(config.members.count()), StagingWay(config.staging)),
        staging_seen(static_cast<std::size_t>(config.members.count())) {}

  const EngineConfig config;
  std::array<KnownOperation, kMaxOperations> operations;  // by epoch, from contributions
  std::array<wire::Refusal, kMaxOperations> refusals;     // of these operations; few are ever used
  Outbox outbox;
  std::array<StagingPool, wire::kPriorities> staging;
  std::array<StagingChoice, wire::kPriorities> staging_choices;         // by priority
  std::array<std::vector<ChannelSet>, wire::kPriorities> channel_sets;  // by priority, then member
  std::vector<StagingWay> staging_ways;                                 // by member, of bulk messages
  std::vector<StagingSeen> staging_seen;                                // of each, for any thread
  verbs::Segment credit_source;                                         // the byte that credit writes send
  std::vector<verbs::RemoteMemory> credit_sinks;  // by member: the byte there that credit writes land on
  LaneStatistics statistics;
  std::optional<Failure> failure;  // the first one; the lane reports it and stops

  StagingPool& pool(wire::Priority p) { return staging[static_cast<std::size_t>(p)]; }
  /// The banks of the pool that contributions to `member`, and results, are composed in.
  StagingPool::Bank bank_up(wire::Priority p, std::uint16_t member) const {
    return staging_choices[static_cast<std::size_t>(p)].up[member];
  }
  StagingPool::Bank bank_down(wire::Priority p) const {
    return staging_choices[static_cast<std::size_t>(p)].down;
  }
  ChannelSet& channels(wire::Priority p, std::uint16_t member) {
    return channel_sets[static_cast<std::size_t>(p)][member];
  }
  std::uint64_t slot_bytes(wire::Priority p) const { return config.channel(p).slot_bytes; }
  std::uint16_t self() const { return static_cast<std::uint16_t>(config.members.self); }
  bool is_self(int member) const { return member == config.members.self; }
  std::string name(int member) const { return config.members.name(member); }

  /// Returns true if messages to and from this member are lent.
  bool lends(wire::Priority p, int member) const {
    return !is_self(member) && config.lends(p, config.members.self, member);
  }
  StagingWay& staging_way(int member) { return staging_ways[static_cast<std::size_t>(member)]; }
  /// Called with a section that has just come from `member`, before its payload is read: times how long that
  /// takes, now and then.
  void time_lent(wire::Priority p, int member, const wire::Header& header, const std::byte* payload) {
    if (p != wire::Priority::bulk || header.payload_bytes < 2 * kStagingSampleBytes || !lends(p, member))
      return;
    const bool streamed = (header.flags & wire::kStreamed) != 0;
    StagingWay& way = staging_way(member);
    if (!way.should_time(streamed)) return;
    way.add(streamed, read_ns_per_kib(payload + header.payload_bytes / 2, kStagingSampleBytes));
    staging_seen[static_cast<std::size_t>(member)].publish(way);
  }
  /// Any thread may ask.
  StagingSummary staging_summary() const {
    StagingSummary all;
    for (int member = 0; member < config.members.count(); ++member) {
      if (!lends(wire::Priority::bulk, member)) continue;
      const StagingSeen& seen = staging_seen[static_cast<std::size_t>(member)];
      const float cached = seen.cached_ns.load(std::memory_order_relaxed);
      const float streamed = seen.streamed_ns.load(std::memory_order_relaxed);
      ++all.members;
      all.streamed += seen.streamed.load(std::memory_order_relaxed) ? 1 : 0;
      if (cached == 0 || streamed == 0) continue;
      ++all.measured;
      all.cached_ns += cached, all.streamed_ns += streamed;
    }
    return all;
  }
  /// Records a failure, unless there is one already.
  void fail(ErrorCode code, std::string text) {
    if (!failure) failure = Failure{code, std::move(text)};
  }
  /// Returns the immediate with which this member announces something in its channel.
  std::uint32_t immediate(wire::Immediate::Kind kind, wire::Direction direction, wire::Priority p,
                          std::uint16_t value) const {
    return wire::encode({kind, {self(), direction, p}, value});
  }
  /// Puts one write into the outbox, and counts it.
  void push(const verbs::Write& write, std::span<const verbs::Segment> segments) {
    std::uint64_t bytes = 0;
    for (const auto& s : segments) bytes += s.bytes;
    LaneStatistics::add(statistics.messages_sent, 1);
    LaneStatistics::add(statistics.bytes_sent, bytes);
    outbox.push(write, segments);
  }
  /// Puts a message for the channel's next slot into the outbox. It was composed in the staging buffer
  /// `buffer`, and one reference to that buffer passes to this function. If the message is not lent, parts of
  /// it may be gathered from elsewhere. Then `gathers_from` is the table index of the operation whose memory
  /// they come from, and that operation gets its local_write_done() when the write is over. Precondition: the
  /// channel is ready() and the outbox has room.
  void push_message(wire::Priority p, wire::Direction direction, std::uint16_t member,
                    StagingPool::Index buffer, std::span<const verbs::Segment> segments,
                    std::optional<std::uint32_t> gathers_from = std::nullopt) {
    SendChannel& channel = channels(p, member).send(direction);
    verbs::Write write{
        .peer = member, .segments = {}, .target = channel.target(), .immediate = {}, .context = 0};
    write.immediate = immediate(wire::Immediate::Kind::message, direction, p, channel.take(buffer));
    if (channel.lends()) {
      LaneStatistics::add(statistics.bytes_sent, segments.front().bytes - credit_source.bytes);
      return push(write, {&credit_source, 1});
    }
    write.context = WriteContext{p, buffer, gathers_from}.encode();
    push(write, segments);
  }
  /// Called when a peer says how many slots of this member's channel it has released. Returns false if it
  /// cannot be so many.
  bool credit(wire::Priority p, wire::Direction direction, std::uint16_t member, std::uint16_t total) {
    return channels(p, member).send(direction).credit(total, pool(p));
  }
  /// Returns slots to their sender, if there are enough of them to be worth a write of its own. `direction`
  /// is the channel's.
  void return_credit(wire::Priority p, wire::Direction direction, std::uint16_t member) {
    ReceiveChannel& channel = channels(p, member).receive(direction);
    if (!channel.credit_due() || outbox.room() == 0) return;
    const std::uint32_t imm = immediate(wire::Immediate::Kind::credit, direction, p, channel.take_credit());
    push({.peer = member, .segments = {}, .target = credit_sinks[member], .immediate = imm, .context = 0},
         {&credit_source, 1});
  }
};

}  // namespace nzcl::engine
