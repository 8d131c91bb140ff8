// What all exchanges of one lane share: channels, staging buffers, the outbox, counters, and the first
// failure.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/failure.h"
#include "runtime/channel/channel.h"
#include "runtime/channel/checksum.h"
#include "runtime/channel/outbox.h"
#include "runtime/channel/ready_set.h"
#include "runtime/channel/staging.h"
#include "runtime/channel/staging_banks.h"
#include "runtime/channel/staging_way.h"
#include "runtime/plan/engine_config.h"
#include "runtime/wire/refusal.h"
#include "runtime/wire/seal.h"

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

/// The channels of one priority, by member. Members without channels take two bytes each, and are all found
/// to have the same one, which has no slots.
class ChannelSets {
 public:
  ChannelSet& operator[](std::size_t member) { return sets_[places_[member]]; }
  const ChannelSet& operator[](std::size_t member) const { return sets_[places_[member]]; }
  /// Starts over with members of which `exists(member)` have channels.
  template <typename Exists>
  void reset(std::size_t members, Exists exists) {
    places_.assign(members, 0);
    std::size_t count = 0;
    for (std::size_t member = 0; member < members; ++member)
      if (exists(member)) places_[member] = static_cast<std::uint16_t>(++count);
    sets_ = std::vector<ChannelSet>(count + 1);
  }

 private:
  static_assert(wire::kMaxMembers <= std::numeric_limits<std::uint16_t>::max());
  std::vector<std::uint16_t> places_;  // by member: of its channels in sets_, or 0
  std::vector<ChannelSet> sets_;
};

/// Where the credits of one channel between this member and another one are written to. The total of released
/// slots is a word of 8 bytes, and word number (total % slots) belongs to it: so an older total that lands
/// late never hides a newer one. An immediate only tells that a word has come. It is believed if the word
/// says the same, because a stranger can send an immediate, but cannot write the word.
struct CreditWordsOfChannel {
  const std::byte* received = nullptr;  // written by the other member; of the channel from this one to it
  std::byte* given = nullptr;           // the sources of this member's writes; of the channel to this one
  verbs::RemoteMemory sink;             // the words `received` of the other member, for that channel
};
/// The same for all channels with all members, whose words lie one after the other.
struct CreditWords {
  std::byte *received = nullptr, *given = nullptr;                          // of member 0
  std::uint64_t of_member = 0;                                              // from one member's to the next
  std::array<std::uint64_t, std::size_t{2} * wire::kPriorities> offsets{};  // of channels, among a member's
  std::vector<verbs::RemoteMemory> sinks;  // by member: where its words for this one begin
  const verbs::MemoryRegion* region = nullptr;

  std::uint64_t& offset(wire::Direction d, wire::Priority p) {
    return offsets[static_cast<std::size_t>(d) * wire::kPriorities + static_cast<std::size_t>(p)];
  }
  CreditWordsOfChannel of(std::uint16_t member, wire::Direction d, wire::Priority p) {
    const std::uint64_t at = offset(d, p), first = member * of_member + at;
    return {received + first, given + first, sinks[member].offset(at)};
  }
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
        outbox(config.is_mixed()),
        arrivals(2 * std::size_t{wire::kPriorities},
                 ReadySet(static_cast<std::size_t>(config.members.count()))),
        staging_ways(static_cast<std::size_t>(config.members.count()), StagingWay(config.staging)),
        staging_seen(static_cast<std::size_t>(config.members.count())),
        sealings(static_cast<std::size_t>(config.members.count())) {}

  const EngineConfig config;
  std::array<KnownOperation, kMaxOperations> operations;  // by epoch, from contributions
  std::array<wire::Refusal, kMaxOperations> refusals;     // of these operations; few are ever used
  Outbox outbox;
  std::array<StagingPool, wire::kPriorities> staging;
  std::array<StagingChoice, wire::kPriorities> staging_choices;  // by priority
  std::array<ChannelSets, wire::kPriorities> channel_sets;       // by priority
  std::vector<ReadySet> arrivals;         // by priority, then direction: see arrived_from()
  std::vector<StagingWay> staging_ways;   // by member, of bulk messages
  std::vector<StagingSeen> staging_seen;  // of each, for any thread
  verbs::Segment announcement_source;     // the byte that announcements of lent messages send
  CreditWords credits;
  /// The gather list of the message that is being pushed, with its seal. It is kept for the next one, because
  /// to clear a new one takes a noticeable part of the time of a small message.
  std::array<verbs::Segment, verbs::kMaxSegments> sealed;
  std::uint64_t seal_secret = 0;        // of this lane's messages; drawn at random, told to members only
  std::vector<wire::Sealing> sealings;  // by member: of the messages of its lane
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
  /// The members from whom messages have arrived in the channels of this priority and direction. Whoever pops
  /// all of a member's messages erases it. The ways in which every member has few partners look at all of
  /// their channels instead.
  ReadySet& arrived_from(wire::Priority p, wire::Direction d) {
    return arrivals[2 * static_cast<std::size_t>(p) + static_cast<std::size_t>(d)];
  }
  std::uint64_t slot_bytes(wire::Priority p) const { return config.channel(p).slot_bytes; }
  std::uint16_t self() const { return static_cast<std::uint16_t>(config.members.self); }
  bool is_self(int member) const { return member == config.members.self; }
  std::string name(int member) const { return config.members.name(member); }
  int number(int member) const { return config.members.number(member); }

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
    outbox.push(write, segments, config.link(static_cast<int>(write.peer)).level);
  }
  /// Puts a message for the channel's next slot into the outbox, with its seal. It was composed in the
  /// staging buffer `buffer`, and one reference to that buffer passes to this function. If the message is not
  /// lent, parts of it may be gathered from elsewhere, with at most config.message_segments() entries. Then
  /// `gathers_from` is the table index of the operation whose memory they come from, and that operation gets
  /// its local_write_done() when the write is over. `sealed_before` says that the same message was pushed
  /// before, for another member, so that its seal is there. Precondition: the channel is ready() and the
  /// outbox has room.
  void push_message(wire::Priority p, wire::Direction direction, std::uint16_t member,
                    StagingPool::Index buffer, std::span<const verbs::Segment> segments,
                    std::optional<std::uint32_t> gathers_from = std::nullopt, bool sealed_before = false) {
    const std::size_t entries = seal(p, buffer, segments, sealed_before);
    assert(segments.size() > 1 ||
           wire::message_end(segments.front().data, slot_bytes(p), direction) == segments.front().bytes);
    SendChannel& channel = channels(p, member).send(direction);
    verbs::Write write{
        .peer = member, .segments = {}, .target = channel.target(), .immediate = {}, .context = 0};
    write.immediate = immediate(wire::Immediate::Kind::message, direction, p, channel.take(buffer));
    if (channel.lends()) {
      LaneStatistics::add(statistics.bytes_sent, sealed.front().bytes - announcement_source.bytes);
      return push(write, {&announcement_source, 1});
    }
    write.context = WriteContext{p, buffer, gathers_from}.encode();
    push(write, {sealed.data(), entries});
  }
  /// Writes a message's seal, and its gather list with the seal into `sealed`. Returns the list's length.
  std::size_t seal(wire::Priority p, StagingPool::Index buffer, std::span<const verbs::Segment> segments,
                   bool sealed_before) {
    std::uint64_t bytes = 0;
    for (const verbs::Segment& s : segments) bytes += s.bytes;
    std::size_t entries =
        static_cast<std::size_t>(std::ranges::copy(segments, sealed.begin()).out - sealed.begin());
    std::byte* const begin = pool(p).buffer(buffer);
    std::byte* const tail = begin + slot_bytes(p);
    verbs::Segment& last = sealed[entries - 1];
    // What was composed last may end in the buffer. Otherwise the seal comes from the memory behind it.
    const bool in_buffer = last.region == pool(p).region() && last.data >= begin && last.data < tail;
    std::byte* const at = in_buffer ? begin + (last.data - begin) + last.bytes : tail;
    if (!sealed_before) {
      const std::uint64_t seal = wire::seal_of(seal_secret, begin, bytes);
      wire::put_seal(config.checksum ? checksummed(seal, segments) : seal, at);
    }
    if (in_buffer) {
      last.bytes += static_cast<std::uint32_t>(wire::kSealBytes);
    } else {
      sealed[entries++] = {at, static_cast<std::uint32_t>(wire::kSealBytes), pool(p).region()};
    }
    return entries;
  }
  static std::uint64_t checksummed(std::uint64_t seal, std::span<const verbs::Segment> segments) {
    Checksum sum;
    for (const verbs::Segment& s : segments) sum.add({s.data, s.bytes});
    return wire::with_checksum(seal, sum.value());
  }
  /// Fails because a message is not what its sender has sealed.
  void damaged(int member, const std::byte* message) {
    wire::Header header;
    std::memcpy(&header, message, sizeof header);
    fail(
        ErrorCode::transport,
        fmt::format("{} received a message of {} about operation {}, slice {}, whose bytes do not have the "
                    "CRC32C that {} sent with them; they were changed on the way, or the sender's tensor was "
                    "written to meanwhile",
                    name(self()), name(member), header.epoch, header.slice, name(member)));
  }
  /// Takes the announcement of a message. Returns what is wrong with it, as a part of a sentence, or nullptr.
  const char* message_announced(const wire::ChannelId& from, std::uint16_t value) {
    ReceiveChannel& channel = channels(from.priority, from.member).receive(from.direction);
    const std::byte* message = channel.announced(value);
    if (message == nullptr)
      return "announced a message in a slot that its channel does not have, or that is taken";
    const auto seal =
        wire::find_seal(sealings[from.member], message, slot_bytes(from.priority), from.direction);
    if (!seal) return "announced a message that is not there";
    if (seal->checksum && checksum_of({message, seal->at}) != *seal->checksum)
      return damaged(from.member, message), nullptr;
    channel.break_seal(value, seal->at);
    arrived(from, value);
    return nullptr;
  }
  /// Puts a message into its place in the channel. Returns false if there is no such place, or if it is
  /// taken.
  bool arrived(const wire::ChannelId& from, std::uint16_t value) {
    if (!channels(from.priority, from.member).receive(from.direction).arrived(value)) return false;
    arrived_from(from.priority, from.direction).insert(from.member);
    return true;
  }
  /// Called when a message of a peer says how many slots of this member's channel it has released. Returns
  /// false if that number is impossible.
  bool credit(wire::Priority p, wire::Direction direction, std::uint16_t member, std::uint16_t total) {
    return channels(p, member).send(direction).credit(total, pool(p));
  }
  /// Called when an immediate says the same. Returns what is wrong with it, as a part of a sentence, or
  /// nullptr.
  const char* credit_announced(const wire::ChannelId& from, std::uint16_t total) {
    const SendChannel& channel = channels(from.priority, from.member).send(from.direction);
    const auto more = channel.newly_credited(total);
    if (!more) return "returned more credits than it was sent messages";
    if (*more <= 0) return nullptr;  // it has come late
    const std::uint64_t full = channel.credited() + static_cast<std::uint64_t>(*more);
    std::uint64_t word = 0;
    std::memcpy(&word,
                credits.of(from.member, from.direction, from.priority).received +
                    full % channel.slots() * sizeof word,
                sizeof word);
    if (word != full) return "announced credits that it has not written";
    return credit(from.priority, from.direction, from.member, total) ? nullptr : "returned too many credits";
  }
  /// Returns slots to their sender, if there are enough of them to be worth a write of its own. `direction`
  /// is the channel's.
  void return_credit(wire::Priority p, wire::Direction direction, std::uint16_t member) {
    ReceiveChannel& channel = channels(p, member).receive(direction);
    if (!channel.credit_due() || outbox.room() == 0) return;
    const std::uint64_t total = channel.take_credit(), at = total % channel.slots() * sizeof total;
    const CreditWordsOfChannel words = credits.of(member, direction, p);
    std::memcpy(words.given + at, &total, sizeof total);
    const verbs::Segment word{words.given + at, sizeof total, credits.region};
    push({.peer = member,
          .segments = {},
          .target = words.sink.offset(at),
          .immediate =
              immediate(wire::Immediate::Kind::credit, direction, p, static_cast<std::uint16_t>(total)),
          .context = 0},
         {&word, 1});
  }
};

}  // namespace nzcl::engine
