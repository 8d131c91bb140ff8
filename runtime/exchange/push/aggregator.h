// The aggregator's half of the push exchange: sums the slices that it owns, in rank order, and sends the sums
// to every rank.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/channel/lane_context.h"
#include "runtime/exchange/contributions/intake.h"
#include "runtime/exchange/contributions/slice_sum.h"
#include "runtime/exchange/push/result_sender.h"

namespace nzcl::engine {

class Worker;

/// A state machine without I/O, in three parts: contributions come in by the intake, are summed slice by
/// slice, and leave by the result sender. Owned by the exchange; only the thread that drives the lane calls
/// it. Steps and bytes: runtime/exchange/push/README.md.
///
/// Contributions stay in their channels' slots until those of all ranks are there; then a run of blocks is
/// summed in one pass into a message or into its final position. So the only memory is the channels' slots,
/// the staging buffers and the bitmaps of kWindow slices.
///
/// Invariant: slices are summed in the order of their sequence. All ranks send in that order too, so the slot
/// that the sum waits for is never behind one that waits for the sum.
class Aggregator {
 public:
  Aggregator(LaneContext& context, wire::Priority priority);
  /// The worker of the same member, if it is one. Once, before use.
  void connect(Worker* local) { results_.connect(local); }

  /// The local worker's contribution to the slice with this sequence, which is read where it lies.
  void offer_local(std::uint64_t sequence, Operation* operation, std::uint64_t slice) {
    intake_.offer_local(sequence, operation, slice);
  }
  /// Does what can be done now; true if anything was.
  bool step();

  /// Nothing is under way.
  bool idle() const { return !intake_.oldest().active && results_.idle(); }
  /// Ranks that the current slice waits for, and with what. Empty: nobody.
  std::string waiting_for() const;

 private:
  enum class Progress : std::uint8_t { waiting, summed, sent, slice_over };
  Progress sum_slice();
  Progress sum_some();
  Progress drop_some();
  Progress close_slice();

  LaneContext& context_;
  Intake intake_;
  SliceSum sum_;
  ResultSender results_;
};

}  // namespace nzcl::engine
