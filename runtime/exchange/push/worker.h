// The worker's half of the push exchange: pushes this rank's slices to their owners, and takes the results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/channel/lane_context.h"
#include "runtime/channel/ready_set.h"
#include "runtime/exchange/contributions/tile_writer.h"
#include "runtime/exchange/push/result_taker.h"
#include "runtime/exchange/push/uplink.h"
#include "runtime/wire/section.h"

namespace nzcl::engine {

class Aggregator;

/// A state machine without I/O: it puts writes into the context's outbox, and reads arrivals from its
/// channels. Owned by the exchange; only the thread that drives the lane calls it. Steps and bytes:
/// runtime/exchange/push/README.md.
///
/// Invariants:
/// - A slice's contribution is sent only after the slice has been scanned, because from then on its result
///   may overwrite the blocks.
/// - A message is composed only when a credit, a staging buffer and room in the outbox are there for it.
class Worker {
 public:
  Worker(LaneContext& context, wire::Priority priority);
  /// Sets the aggregator of the same member. Called before any other function, and only if there is such an
  /// aggregator.
  void connect(Aggregator* local) { local_ = local; }

  /// Takes part in the operation, which must stay alive until it has finished. Operations are submitted in
  /// the order of their epochs.
  void submit(Operation* operation);
  /// Does what can be done now. Returns true if anything moved.
  bool step();

  /// Called when a direct write from `member` has become visible, for the slice with this sequence modulo
  /// 2^16.
  void on_direct(std::uint16_t member, std::uint16_t sequence);
  /// Takes a section of a result from the local aggregator. Returns false if it cannot be placed yet, and
  /// must be offered again.
  bool consume_local(const wire::Section& section, bool placed) {
    return taker_.consume(uplinks_.front(), section, placed);  // the local aggregator's uplink comes first
  }

  /// Returns true if some operation that was submitted has not finished here.
  bool busy() const { return submitted_slices_ > taker_.finished(); }
  /// Names the aggregators that owe this worker something, for messages about a stall.
  std::string waiting_for() const;

 private:
  void add(std::size_t uplink, Operation& operation, std::uint64_t owned);
  std::size_t uplink_to(int aggregator) const;
  bool pull_arrived();
  bool offer(Uplink& uplink);
  bool push(Uplink& uplink);
  bool start_slices(Uplink& uplink);
  bool bitmap_goes_ahead(const Uplink& uplink) const;
  bool next_is_ready(const Uplink& uplink) const;
  bool may_compose(const Uplink& uplink);
  bool takes_next_along(const Uplink& uplink, std::uint64_t covered, std::uint64_t bytes) const;
  void compose(Uplink& uplink, Transfer& first, SectionParts parts);
  void fail_without_room(const Transfer& transfer, StagingPool::Index staging);
  Transfer* start_along(Uplink& uplink, const MessageBuilder& message, const Transfer& last,
                        std::uint64_t covered);
  bool add_section(Uplink& uplink, MessageBuilder& message, Transfer& transfer, SectionParts parts);
  bool streams(const Uplink& uplink, const Transfer& t);
  MessageBuilder begin_message(const Uplink& uplink, StagingPool::Index staging, bool streamed);
  void push_message(const Uplink& uplink, const MessageBuilder& message, StagingPool::Index staging,
                    const Transfer& last);

  LaneContext& context_;
  const wire::Priority priority_;
  const std::uint64_t ahead_bytes_;  // see Uplink::may_start()
  Aggregator* local_ = nullptr;
  std::vector<Uplink> uplinks_;  // one for each aggregator; the local one's is the first
  ReadySet busy_;                // uplinks that are not idle
  std::uint64_t submitted_slices_ = 0;
  TileWriter tile_writer_;
  ResultTaker taker_;
};

}  // namespace nzcl::engine
