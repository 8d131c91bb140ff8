// What a compressor's state keeps on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/compress/layout.h"
#include "runtime/compress/tensor_state.h"
#include "runtime/gpu/gpu.h"

namespace nzcl::comm {

/// The residual and the velocity of one tensor, where its bins end, and room for what a step computes before
/// it selects. One thread at a time may use it. Its calls wait for what the GPU does with them.
///
/// What coding has lost of the values of a step is here, on the host, until the next step puts it back into
/// the residual.
class GpuArrays {
 public:
  /// Throws Error{system} if there is no memory.
  GpuArrays(std::shared_ptr<gpu::Gpu> gpu, const Compressor& compressor, const compress::Layout& layout);
  ~GpuArrays();
  GpuArrays(const GpuArrays&) = delete;
  GpuArrays& operator=(const GpuArrays&) = delete;

  const std::shared_ptr<gpu::Gpu>& gpu() const { return gpu_; }
  /// The part of a step's job that says where these arrays are.
  gpu::SelectJob job() const;
  /// Such a job has been started, so the arrays are as it leaves them.
  void step_begun();
  /// Keeps what coding has lost of the values of a slice.
  void keep_lost(const compress::Slice& slice, std::size_t index, std::span<const std::uint16_t> offsets,
                 std::span<const float> before, std::span<const float> sent) noexcept;
  /// Writes down for the GPU what was lost in the last step, as it tells what it selects. Returns whether
  /// there is anything.
  bool write_lost(std::uint16_t* offsets, float* values, gpu::SelectCounts* counts) const noexcept;
  /// The residual is multiplied before the next step adds to it.
  void multiply(float scale) { scale_ *= scale; }
  /// What the host needs to code the values of a slice.
  compress::SliceBuffers& buffers() { return buffers_; }
  /// Both are zeros again.
  void reset();
  std::vector<float> residual() const;
  std::vector<float> velocity() const { return read(job_.velocity); }
  /// Bytes of as many floats as the arrays have; those that the compressor does not keep are empty.
  void write(std::span<const std::byte> residual, std::span<const std::byte> velocity);

 private:
  template <typename T>
  T* allocate(std::uint64_t count);
  template <typename T>
  T* upload(const std::vector<T>& from);
  void allocate_all(const Compressor& compressor, const compress::Layout& layout);
  std::vector<float> read(const float* from) const;
  void free_all() noexcept;

  const std::shared_ptr<gpu::Gpu> gpu_;
  const std::uint64_t elements_;
  const bool keeps_residual_;
  std::vector<std::byte*> all_;  // that is freed in the end
  gpu::Stream stream_ = nullptr;
  gpu::SelectJob job_;  // the part that says where everything is
  bool fresh_ = true;
  float scale_ = 1;
  // Of slice i from its first element on. The operating system provides memory only for pages that were
  // written.
  std::unique_ptr<std::uint16_t[]> lost_offsets_;
  std::unique_ptr<float[]> lost_;
  std::vector<std::uint32_t> lost_counts_;  // by slice
  compress::SliceBuffers buffers_;
};

}  // namespace nzcl::comm
