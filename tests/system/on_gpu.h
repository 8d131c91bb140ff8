// Memory of an emulated GPU for ranks of a test.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/gpu/emulated/emulated_gpu.h"

namespace nzcl::test {

/// A rank's GPU, with a stream of the rank's own. Memory is freed with it.
class OnGpu {
 public:
  explicit OnGpu(unsigned seed = 1) : gpu_(gpu::EmulatedGpu::make(seed)), stream_(gpu_->make_stream()) {}

  gpu::EmulatedGpu& gpu() { return *gpu_; }
  void* stream() const { return stream_; }
  std::byte* allocate(std::size_t bytes) { return gpu_->allocate(bytes); }
  /// Copies to memory of the GPU, in the order of the stream. `from` must stay until that has happened.
  void write(std::byte* to, const std::vector<std::byte>& from) {
    gpu_->copy(stream_, to, from.data(), from.size());
  }
  /// Returns what is there when the stream has come to it.
  std::vector<std::byte> read(const std::byte* from, std::size_t bytes) {
    std::vector<std::byte> to(bytes);
    gpu_->copy(stream_, to.data(), from, bytes);
    gpu_->synchronize(stream_);
    return to;
  }

 private:
  std::shared_ptr<gpu::EmulatedGpu> gpu_;
  void* stream_;
};

}  // namespace nzcl::test
