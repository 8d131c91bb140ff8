// Memory of a GPU for the buffers of a rank: of one of CUDA's, or of an emulated one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "nzcl/communicator.h"
#include "perf/allreduce/settings.h"
#include "runtime/gpu/gpu.h"

namespace perf::allreduce {

/// A rank's input and output on its GPU, and a stream. What an operation takes is registered: this memory,
/// or, if it is copied, pinned memory of the host that stands for it.
class GpuMemory {
 public:
  /// Rank r takes GPU r modulo the number of GPUs. Throws nzcl::Error if there is none.
  GpuMemory(nzcl::Communicator& communicator, Memory kind, std::size_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* input() const { return input_; }
  std::byte* output() const { return output_; }
  /// What an operation takes.
  std::byte* given_input() const { return copied_ ? pinned_input_.host : input_; }
  std::byte* given_output() const { return copied_ ? pinned_output_.host : output_; }
  void* given_stream() const { return copied_ ? nullptr : stream_; }
  /// Copy what is copied before an operation, or behind it, and wait.
  void before(std::size_t bytes, bool in_place);
  void behind(std::size_t bytes);
  /// Copy between the host and this memory, and wait.
  void write(std::byte* to, std::span<const std::byte> from);
  void read(std::span<std::byte> to, const std::byte* from);

 private:
  const bool copied_;
  std::shared_ptr<nzcl::gpu::Gpu> gpu_;
  nzcl::gpu::Stream stream_ = nullptr;
  std::byte *input_ = nullptr, *output_ = nullptr;
  nzcl::gpu::PinnedMemory pinned_input_, pinned_output_;
  nzcl::RegisteredBuffer registered_input_, registered_output_;
};

}  // namespace perf::allreduce
