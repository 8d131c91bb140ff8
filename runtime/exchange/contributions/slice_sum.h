// Sums the contributions to one slice, run by run, in rank order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/exchange/contributions/intake.h"
#include "runtime/kernels/reduce.h"

namespace nzcl::engine {

/// Sums one slice at a time, from start() until its last byte has been summed.
///
/// A run of blocks that the same ranks hold is summed in one pass over all of their contributions, where
/// these lie. So each contribution is read only once. It is summed in the order of the ranks, whatever the
/// order in which messages arrived, so every sum is reproducible to the last bit. Owned by an exchange and
/// used by one thread.
class SliceSum {
 public:
  SliceSum(LaneContext& context, wire::Priority priority, Intake& intake);

  /// Begins with slice `s`. Precondition: the intake has all bitmaps of `s`, and keeps the slice until the
  /// sum is done. Of a tiled slice there is nothing to sum here: TileSum does that.
  void start(IncomingSlice& s);
  /// Returns true between start() and stop().
  bool started() const { return slice_ != nullptr; }
  void stop() { slice_ = nullptr; }

  IncomingSlice& slice() { return *slice_; }
  const IncomingSlice& slice() const { return *slice_; }
  /// Returns the blocks of the result: those that any rank contributes.
  SliceView result() const { return slice_->view({union_.get(), slice_->layout->words_of(slice_->slice)}); }
  std::uint64_t result_bytes() const { return result_bytes_; }
  std::uint64_t summed_bytes() const { return summed_bytes_; }
  bool done() const { return walk_.at_end(); }
  /// Returns where the next byte of the result belongs, as an offset in the tensor or chunk.
  std::uint64_t tensor_offset() const { return walk_.offset(); }

  struct Step {
    std::uint64_t bytes = 0;    // summed; 0 if a contribution has not arrived yet
    bool ends_stretch = false;  // the next bytes belong elsewhere in the tensor
  };
  /// Sums as many bytes as lie together in all contributions, at most `room`, and writes the sum to `to`.
  /// This may be where the local contribution lies. Precondition: !done(), room > 0.
  Step sum_into(std::byte* to, std::uint64_t room);
  /// Does the same without computing the sum, for a result that does not fit the output.
  Step skip(std::uint64_t room);

  /// Returns the ranks that hold the current run: those whose bytes the sum takes next, or waits for.
  std::span<const int> holders() const { return holders_; }

 private:
  void unite(std::uint64_t words);
  void find_holders();
  std::uint64_t gather(std::uint64_t limit);
  Step advance(std::uint64_t bytes);

  LaneContext& context_;
  Intake& intake_;
  IncomingSlice* slice_ = nullptr;
  ReduceFn reduce_ = nullptr;
  bool copies_ = false;  // one rank contributes, and its bytes stay what they are
  std::uint64_t element_bytes_ = 1;
  // Bitmaps of the current slice: the blocks of the result, and the last blocks of the runs that the same
  // ranks hold.
  std::unique_ptr<std::uint64_t[]> union_, edges_;
  RunWalk walk_;
  std::uint64_t result_bytes_ = 0, summed_bytes_ = 0;
  std::vector<int> holders_;                // ranks that hold the run at walk_
  bool local_holds_ = false;                // this member is one of them
  std::vector<const std::byte*> pointers_;  // next bytes of the holders, in rank order
};

}  // namespace nzcl::engine
