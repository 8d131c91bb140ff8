// Memory of a GPU for the buffers of a rank: of one of CUDA's, or of an emulated one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "nzcl/communicator.h"
#include "perf/allreduce/settings.h"
#include "runtime/gpu/gpu.h"

namespace perf::allreduce {

/// A rank's input and output on its GPU, registered, and a stream.
class GpuMemory {
 public:
  /// Rank r takes GPU r modulo the number of GPUs. Throws nzcl::Error if there is none.
  GpuMemory(nzcl::Communicator& communicator, Memory kind, std::size_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* input() const { return input_; }
  std::byte* output() const { return output_; }
  void* stream() const { return stream_; }
  /// Copy between the host and this memory, and wait.
  void write(std::byte* to, std::span<const std::byte> from);
  void read(std::span<std::byte> to, const std::byte* from);

 private:
  std::shared_ptr<nzcl::gpu::Gpu> gpu_;
  nzcl::gpu::Stream stream_ = nullptr;
  std::byte *input_ = nullptr, *output_ = nullptr;
  nzcl::RegisteredBuffer registered_input_, registered_output_;
};

}  // namespace perf::allreduce
