// What worker and aggregator engines of one lane share. Everything in it is touched only by the thread that
// drives the lane.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "runtime/bootstrap/control.h"
#include "runtime/engine/channel.h"
#include "runtime/engine/config.h"
#include "runtime/engine/outbox.h"
#include "runtime/engine/staging.h"

namespace nzcl::engine {

/// Counters of one lane, written by its driver, read by anyone.
struct LaneStatistics {
  std::atomic<std::uint64_t> messages_sent{0}, bytes_sent{0}, bytes_received{0}, bytes_packed{0};
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
};

/// Both directions of one class to one member. Channels that the two roles do not need have no slots.
struct Link {
  SendChannel send_up, send_down;
  ReceiveChannel receive_up, receive_down;
};

/// What the first rank said an operation is: the others must say the same.
struct KnownOperation {
  bool valid = false;
  std::uint64_t epoch = 0;
  int rank = 0;
  wire::OperationRecord record;
};

struct LaneContext {
  explicit LaneContext(const EngineConfig& engine_config) : config(engine_config) {}

  const EngineConfig config;
  std::array<KnownOperation, kMaxOperations> operations;  // aggregator: by epoch
  Outbox outbox;
  std::array<StagingPool, wire::kClasses> staging;
  std::array<std::vector<Link>, wire::kClasses> links;  // by class, then member
  verbs::Segment credit_source;                         // one byte, for credit writes
  std::vector<verbs::RemoteMemory> credit_sinks;        // by member: one byte there
  LaneStatistics statistics;
  std::optional<bootstrap::Failure> failure;  // the first; the lane reports it and stops

  StagingPool& pool(wire::Class c) { return staging[static_cast<std::size_t>(c)]; }
  Link& link(wire::Class c, std::uint16_t member) { return links[static_cast<std::size_t>(c)][member]; }
  std::uint16_t self() const { return static_cast<std::uint16_t>(config.members.self); }

  void fail(ErrorCode code, std::string text) {
    if (!failure) failure = bootstrap::Failure{code, std::move(text)};
  }
  /// The immediate by which `self` announces a message in its channel, seen from the receiver.
  std::uint32_t immediate(wire::Immediate::Kind kind, wire::Direction direction, wire::Class c,
                          std::uint16_t value) const {
    return wire::encode({kind, {self(), direction, c}, value});
  }
  /// Posts one write and counts it.
  void push(const verbs::Write& write, std::span<const verbs::Segment> segments) {
    std::uint64_t bytes = 0;
    for (const auto& s : segments) bytes += s.bytes;
    LaneStatistics::add(statistics.messages_sent, 1);
    LaneStatistics::add(statistics.bytes_sent, bytes);
    outbox.push(write, segments);
  }
  /// Posts a message, composed in `staging` (and, unless its class is lent, gathered from elsewhere), to the
  /// channel's next slot. Takes over one reference on the buffer. Precondition: ready(), room in the outbox.
  void push_message(wire::Class c, wire::Direction direction, std::uint16_t member, StagingPool::Index buffer,
                    std::span<const verbs::Segment> segments) {
    Link& l = link(c, member);
    SendChannel& channel = direction == wire::Direction::up ? l.send_up : l.send_down;
    verbs::Write write{
        .peer = member, .segments = {}, .target = channel.target(), .immediate = {}, .context = 0};
    write.immediate = immediate(wire::Immediate::Kind::message, direction, c, channel.take(buffer));
    if (channel.lends()) {
      LaneStatistics::add(statistics.bytes_sent, segments.front().bytes - credit_source.bytes);
      return push(write, {&credit_source, 1});
    }
    write.context = WriteContext{WriteContext::Kind::staging, c, buffer}.encode();
    push(write, segments);
  }
  /// Slots of the own channel came back. False: not possible.
  bool credit(wire::Class c, wire::Direction direction, std::uint16_t member, std::uint16_t total) {
    Link& l = link(c, member);
    return (direction == wire::Direction::up ? l.send_up : l.send_down).credit(total, pool(c));
  }
  /// Returns slots to their sender once that is worth a write of its own. `direction` is the channel's.
  void return_credit(wire::Class c, wire::Direction direction, std::uint16_t member) {
    Link& l = link(c, member);
    ReceiveChannel& channel = direction == wire::Direction::up ? l.receive_up : l.receive_down;
    if (!channel.credit_due() || outbox.room() == 0) return;
    const std::uint32_t imm = immediate(wire::Immediate::Kind::credit, direction, c, channel.take_credit());
    push({.peer = member, .segments = {}, .target = credit_sinks[member], .immediate = imm, .context = 0},
         {&credit_source, 1});
  }
};

}  // namespace nzcl::engine
