// The worker's half of one class on one lane: pushes this rank's slices to their owners, and puts results
// into place. A state machine without I/O: writes go to the context's outbox, arrivals are read from its
// channels. Steps and bytes: runtime/engine/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/bits.h"
#include "runtime/engine/config.h"
#include "runtime/engine/lane_context.h"
#include "runtime/engine/operation.h"
#include "runtime/engine/payload.h"

namespace nzcl::engine {

class Aggregator;

/// Owned by the lane; only the thread that drives the lane calls it.
///
/// Invariants:
/// - A slice's contribution is sent only after its scan is over, so a result can land on its blocks at any
/// time after.
/// - Slices of one owner are started in sequence order, at most kWindow beyond the oldest incomplete one.
/// - A message is composed only with a credit, a staging buffer and room in the outbox in hand.
/// - Mirrored: only the own member's owner has an uplink. A slice is offered to it when its message to all
/// others is composed.
class Worker {
 public:
  Worker(LaneContext& context, wire::Class size_class);
  /// The aggregator of the same member, if it has one. Once, before use.
  void connect(Aggregator* local) { local_ = local; }

  /// The operation stays alive until it has finished. Operations of a class are submitted in epoch order.
  void submit(Operation* operation);
  /// Does what can be done now; true if anything was.
  bool step();

  void on_direct(std::uint16_t member, std::uint16_t sequence);
  /// A result of the local aggregator. False: it can't be placed yet, offer it again.
  bool consume_local(const wire::Header& header, const std::byte* body);

  /// Operations submitted and not finished here.
  bool busy() const { return busy_slices_ > 0; }
  /// Aggregators that owe this worker something: for messages about a stall.
  std::string waiting_for() const;

 private:
  struct Transfer {  // one slice between its start and its completion
    Operation* operation = nullptr;
    std::uint64_t slice = 0;
    bool active = false;
    // up
    StreamCursor up;
    std::uint64_t ordinal = 0;  // sparse input: of the set block at `up`, over the whole tensor
    std::uint64_t stream_bytes = 0, sent_bytes = 0;
    std::uint64_t weight = 0;  // in Uplink::ahead
    // down
    bool have_union = false;
    StreamCursor down;
    std::uint64_t union_bytes = 0, received_bytes = 0;
    std::uint64_t packed_block = 0;  // packed result: ordinal of the block at `down` within the slice
    bool direct = false;
    std::uint32_t direct_expected = 0, direct_seen = 0;
  };
  struct Pending {  // an operation with slices of this owner that were not started yet
    Operation* operation = nullptr;
    std::uint64_t next = 0, owned = 0;
  };
  struct Uplink {  // everything between this worker and one owner
    std::uint16_t member = 0;
    std::uint32_t owner = 0;
    std::array<Pending, kMaxOperations> pending;
    std::uint32_t first_pending = 0, pending_count = 0;
    std::array<Transfer, kWindow> transfers;  // by sequence
    std::uint64_t oldest = 0;                 // lowest incomplete sequence
    std::uint64_t sending = 0;                // lowest sequence not wholly sent
    std::uint64_t started = 0;                // sequences below have had their bitmap sent
    std::uint64_t ahead = 0;                  // what those incomplete weigh
    ReceiveChannel::Message held;             // a message with results that could not be placed yet
    std::uint64_t held_at = 0;                // the first section of it that was not

    Transfer& at(std::uint64_t sequence) { return transfers[sequence % kWindow]; }
  };

  bool push(Uplink& uplink);
  bool start_slices(Uplink& uplink);
  bool may_start(const Uplink& uplink) const;
  std::uint64_t next_slice(const Uplink& uplink) const;
  std::uint64_t begin_slice(Uplink& uplink);
  void offer(Uplink& uplink, std::uint64_t sequence);
  bool send_data(Uplink& uplink);
  std::span<const std::uint16_t> targets(const Uplink& uplink) const;
  bool may_compose(const Uplink& uplink);
  void skip_sent(Uplink& uplink);
  std::uint64_t owned(const SliceLayout& layout, std::uint32_t owner) const;
  void compose(Uplink& uplink, std::uint64_t sequence, bool with_bitmap, bool with_data);
  bool next_goes_along(const Uplink& uplink, std::uint64_t covered, std::uint64_t bytes) const;
  bool next_fits(const Uplink& uplink, const PayloadBuilder& message) const;
  std::byte* add_section(Uplink& uplink, PayloadBuilder& message, std::uint64_t sequence, bool with_bitmap,
                         bool with_data);
  bool pull(Uplink& uplink);
  bool consume(Uplink& uplink, const wire::Header& header, const std::byte* body);
  bool take_union(Transfer& transfer, const wire::Header& header, const std::byte* bitmap);
  void scatter(Transfer& transfer, const std::byte* payload, std::uint64_t bytes, std::uint64_t place);
  void complete_if_done(Uplink& uplink, Transfer& transfer);
  bool valid(const wire::Header& header, std::uint64_t at) const;

  LaneContext& context_;
  const wire::Class class_;
  Aggregator* local_ = nullptr;
  const bool mirrored_;
  std::vector<Uplink> uplinks_;         // by aggregator, the own member's first; mirrored: that one
  std::vector<std::uint16_t> mirrors_;  // mirrored: the members that every message goes to
  std::uint64_t busy_slices_ = 0;
};

}  // namespace nzcl::engine
