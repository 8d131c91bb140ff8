// Sums the contributions to one slice, run by run, in rank order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/exchange/contributions/intake.h"
#include "runtime/kernels/reduce.h"

namespace nzcl::engine {

/// One slice at a time, from start() until its last byte has been summed. Owned by an exchange, one thread.
///
/// A run of blocks that the same ranks hold is summed in one pass over all of their contributions, where
/// those lie. So each contribution is read once, in rank order whatever order messages came in, and every sum
/// is reproducible to the last bit.
class SliceSum {
 public:
  SliceSum(LaneContext& context, wire::Priority priority, Intake& intake);

  /// `s` is complete and stays so until the sum is done.
  void start(IncomingSlice& s);
  /// Between start() and stop().
  bool started() const { return slice_ != nullptr; }
  void stop() { slice_ = nullptr; }

  IncomingSlice& slice() { return *slice_; }
  const IncomingSlice& slice() const { return *slice_; }
  /// The blocks of the result.
  SliceView result() const { return slice_->view({union_.get(), slice_->layout->words_of(slice_->slice)}); }
  std::uint64_t result_bytes() const { return result_bytes_; }
  std::uint64_t summed_bytes() const { return summed_bytes_; }
  bool done() const { return walk_.at_end(); }
  /// Where the next byte of the result belongs: its offset in the tensor.
  std::uint64_t tensor_offset() const { return walk_.offset(); }

  struct Step {
    std::uint64_t bytes = 0;    // summed; 0: a contribution is not here yet
    bool ends_stretch = false;  // what follows belongs elsewhere in the tensor
  };
  /// Sums as much as lies together, at most `room` bytes, to `to`, which may be where the local contribution
  /// lies. Precondition: !done(), room > 0.
  Step sum_into(std::byte* to, std::uint64_t room);
  /// The same, but the sum is not wanted.
  Step skip(std::uint64_t room);

  /// Ranks whose bytes the sum waits for, or would take next.
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
  std::uint64_t element_bytes_ = 1;
  // Bitmaps of the current slice: the result's blocks, and the last blocks of runs that the same ranks hold.
  std::unique_ptr<std::uint64_t[]> union_, edges_;
  RunWalk walk_;
  std::uint64_t result_bytes_ = 0, summed_bytes_ = 0;
  std::vector<int> holders_;                // ranks that hold the run at walk_
  bool local_holds_ = false;                // this member's own rank is one of them
  std::vector<const std::byte*> pointers_;  // their next bytes, in rank order
};

}  // namespace nzcl::engine
