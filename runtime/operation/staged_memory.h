// What stands between an operation and memory that the host cannot read.
#pragma once

namespace nzcl::engine {

/// Owned by an operation whose input and output are on a GPU: pieces of host memory that stand for them.
class StagedMemory {
 public:
  virtual ~StagedMemory() = default;
  /// Makes a stream of the GPU wait until the operation is over, with success or without. Any thread may call
  /// it, also when that is so already. Throws Error.
  virtual void enqueue_wait(void* stream) = 0;
};

}  // namespace nzcl::engine
