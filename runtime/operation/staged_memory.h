// What stands between an operation and memory that the host cannot read.
#pragma once

#include <cstdint>
#include <span>

namespace nzcl::engine {

/// Owned by an operation whose input, output or both are on a GPU: pieces of host memory that stand for them.
class StagedMemory {
 public:
  virtual ~StagedMemory() = default;
  /// Whether it says of this slice of the input when it is there; see Operation::slice_staged().
  virtual bool brings(std::uint64_t slice) const = 0;
  /// Makes a stream of the GPU wait until the operation is over, with success or without. Any thread may call
  /// it, also when that is so already. Throws Error.
  virtual void enqueue_wait(void* stream) = 0;
  /// Called once for each slice, by its lane: nothing of it moves any more. `bits` are the union's blocks in
  /// it, and nothing for a tiled operation. If `valid` is false, its result is of no use. If it is `far`, it
  /// lies in OutputView::far.
  virtual void slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits, bool valid,
                          bool far) noexcept = 0;
};

}  // namespace nzcl::engine
