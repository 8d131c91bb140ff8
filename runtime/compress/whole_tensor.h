// Compresses a whole tensor at once, into one list of indices and values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "nzcl/compress.h"
#include "runtime/compress/tensor_state.h"

namespace nzcl::compress {

/// Owns room for the values and indices of all elements of a tensor, because a step may send all of them. The
/// operating system provides memory only for pages that were written, so the memory in use is that of the
/// step that sent most. One thread at a time may use it.
class WholeTensor {
 public:
  /// One step of the state. Throws what TensorState::begin_step() throws, and std::bad_alloc in the first
  /// call, before anything has changed.
  CompressedGradient compress(TensorState& state, std::span<const float> gradient, int rank, int ranks);

  /// Where the values of each step are written, always at the same address; nullptr before the first step.
  float* values() { return values_.get(); }

 private:
  /// Codes what was selected in all slices.
  void code_all(TensorState& state);

  std::optional<SliceBuffers> buffers_;
  std::unique_ptr<std::uint16_t[]> offsets_;  // of one slice
  std::unique_ptr<float[]> values_;
  std::unique_ptr<std::int64_t[]> indices_;
};

}  // namespace nzcl::compress
