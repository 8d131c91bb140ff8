// Sums the contributions to whole operations of one slice, directly into this rank's output.
#pragma once

#include <span>
#include <vector>

#include "runtime/exchange/contributions/slice_sum.h"

namespace nzcl::engine {

/// For exchanges in which every rank has all contributions and sums them itself. All ranks sum the same bytes
/// in the same order, so they get the same bits. Owned by an exchange and used by one thread.
class OutputSum {
 public:
  OutputSum(LaneContext& context, wire::Priority priority, Intake& intake)
      : intake_(intake), sum_(context, priority, intake), overflow_(context.slot_bytes(priority)) {}

  /// Sums as much of `s`, the intake's oldest slice, as has arrived. Precondition: all bitmaps are there, and
  /// so is this rank's contribution. Returns true if anything moved.
  bool sum(IncomingSlice& s);
  bool done() const { return sum_.done(); }
  /// Ends the slice, and with it the operation on this rank, which may be deleted from then on. Precondition:
  /// done().
  void finish();

  /// The ranks whose bytes the sum waits for, if it has begun.
  std::span<const int> holders() const { return sum_.started() ? sum_.holders() : std::span<const int>(); }

 private:
  bool sum_some();

  Intake& intake_;
  SliceSum sum_;
  std::vector<std::byte> overflow_;  // sums that do not fit a packed output
};

}  // namespace nzcl::engine
