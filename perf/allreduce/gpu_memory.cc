#include "perf/allreduce/gpu_memory.h"

#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/emulated/emulated_gpu.h"

namespace perf::allreduce {
namespace {

std::shared_ptr<nzcl::gpu::Gpu> choose_gpu(int rank, Memory kind) {
  using namespace nzcl::gpu;
  if (kind == Memory::emulated) return EmulatedGpu::make(static_cast<unsigned>(rank) + 1);
  const CudaDriver& driver = CudaDriver::open();
  const int count = CudaGpu::count(driver);
  if (count == 0) throw nzcl::Error(nzcl::ErrorCode::unavailable, "the CUDA driver has no GPU");
  return CudaGpu::number(driver, rank % count);
}

}  // namespace

GpuMemory::GpuMemory(nzcl::Communicator& communicator, Memory kind, std::size_t bytes)
    : gpu_(choose_gpu(communicator.rank(), kind)),
      stream_(gpu_->make_stream()),
      input_(gpu_->allocate(bytes)),
      output_(gpu_->allocate(bytes)),
      registered_input_(communicator.register_buffer(input_, bytes, nzcl::MemoryKind::device)),
      registered_output_(communicator.register_buffer(output_, bytes, nzcl::MemoryKind::device)) {}

GpuMemory::~GpuMemory() {
  registered_input_ = {};
  registered_output_ = {};
  gpu_->free(input_);
  gpu_->free(output_);
  gpu_->destroy_stream(stream_);
}

void GpuMemory::write(std::byte* to, std::span<const std::byte> from) {
  gpu_->copy(stream_, to, from.data(), from.size());
  gpu_->synchronize(stream_);
}

void GpuMemory::read(std::span<std::byte> to, const std::byte* from) {
  gpu_->copy(stream_, to.data(), from, to.size());
  gpu_->synchronize(stream_);
}

}  // namespace perf::allreduce
