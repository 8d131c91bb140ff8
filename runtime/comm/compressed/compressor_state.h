// The inside of a CompressorState: the state of the tensor, and the last operation that uses it.
#pragma once

#include <memory>
#include <span>

#include "nzcl/communicator.h"
#include "nzcl/compress.h"
#include "runtime/comm/gpu/gpu_step.h"
#include "runtime/compress/compression_step.h"
#include "runtime/compress/tensor_state.h"
#include "runtime/compress/whole_tensor.h"

namespace nzcl {

class CompressorState::Impl {
 public:
  /// `gpu`: where residual and velocity are; nullptr: here.
  Impl(const Compressor& compressor, std::span<const Layer> layers, std::shared_ptr<gpu::Gpu> gpu);
  /// Waits for the operation that uses the buffers.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Throws Error{invalid_usage} if an operation still uses the buffers. `call` is what the caller wants.
  void require_idle(const char* call);
  /// Throws Error{unsupported} if the state is on a GPU.
  void require_host(const char* call) const;
  /// What the state and its last operation have done.
  CompressionReport report();
  /// A checksum of what all ranks' states must have in common: the compressor, and in tiles also what the
  /// next step draws, because drawn indices do not travel.
  std::uint64_t checksum() const { return checksum_; }
  std::uint64_t checksum_in_tiles() const;

  compress::TensorState tensor;
  std::unique_ptr<comm::GpuArrays> arrays;  // of a state on a GPU
  std::shared_ptr<comm::GpuStep> gpu_step;  // its last one
  compress::WholeTensor whole;
  /// Of operations in tiles, which share it with the scan threads; nullptr before the first.
  std::shared_ptr<compress::CompressionStep> step;
  std::unique_ptr<float[]> dense;  // the input of a dense operation, where everything is sent

  RegisteredBuffer registered;  // what the last operation read, and maybe more
  Work work;                    // the last operation, until another call wants the state
  /// Share of the tensor that the last step sent to other members; 0: it was no allreduce.
  double sent_share = 0;
  std::uint64_t sent_bytes = 0;  // of that operation, upwards, if it is not `work`

 private:
  void require_no_work(const char* call);
  void note_sent_bytes();
  const std::uint64_t checksum_;
};

/// Lets the part of the library that starts operations use the inside of a state.
class CompressorStateAccess {
 public:
  using Impl = CompressorState::Impl;
  static CompressorState::Impl& of(CompressorState& state) { return state.impl(); }
  static bool is_empty(const CompressorState& state) { return state.impl_ == nullptr; }
};

}  // namespace nzcl
