// The aggregator's half of the push exchange: sums the slices that it owns, in rank order, and sends the sums
// to every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/channel/lane_context.h"
#include "runtime/exchange/contributions/intake.h"
#include "runtime/exchange/contributions/slice_sum.h"
#include "runtime/exchange/contributions/tile_sum.h"
#include "runtime/exchange/exchange.h"
#include "runtime/exchange/push/result_sender.h"

namespace nzcl::engine {

class Worker;

/// Sums the slices that this lane owns, one after the other, and sends each sum to all ranks. It is a state
/// machine without I/O: the intake receives contributions, the sum adds them up, and the result sender passes
/// the results on. Owned by the exchange; only the thread that drives the lane calls it. Steps and bytes:
/// runtime/exchange/push/README.md.
///
/// Contributions stay in their channels' slots until those of all ranks are there. Then each run of blocks is
/// summed in one pass, into a message or into its final position. So no memory is needed but the channels'
/// slots, the staging buffers, and the bitmaps of kWindow slices.
///
/// Invariant: slices are summed in the order of their sequence. All ranks send in that order too, so the
/// message that the sum waits for is never held up by one that waits for the sum.
class Aggregator {
 public:
  Aggregator(LaneContext& context, wire::Priority priority);
  /// Sets the worker of the same member. Called before any other function, and only if there is such a
  /// worker.
  void connect(Worker* local) { results_.connect(local); }

  /// Adds the local worker's contribution to the slice with this sequence. It is read in the operation's
  /// input and not copied.
  void offer_local(std::uint64_t sequence, Operation* operation, std::uint64_t slice) {
    intake_.offer_local(sequence, operation, slice);
  }
  /// Does what can be done now. Returns true if anything moved.
  bool step();

  /// Returns true if nothing is under way.
  bool idle() const { return !intake_.oldest().active && results_.idle(); }
  /// Says what the current slice waits for, and names the ranks if they are known. Empty if nothing is under
  /// way. Nobody is suspected.
  Stall waiting_for() const;

 private:
  enum class Progress : std::uint8_t { waiting, summed, sent, slice_over };
  Progress sum_slice();
  Progress sum_some();
  Progress sum_tile();
  bool summed() const;
  /// Grows with everything that is summed of a slice.
  std::uint64_t amount_summed() const { return sum_.summed_bytes() + tiles_.summed(); }
  std::span<const int> holders() const;
  Progress drop_some();
  Progress close_slice();

  LaneContext& context_;
  Intake intake_;
  SliceSum sum_;
  TileSum tiles_;  // of tiled slices, in place of sum_
  ResultSender results_;
};

}  // namespace nzcl::engine
