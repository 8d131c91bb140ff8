#include "perf/allreduce/gpu_memory.h"

#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/emulated/emulated_gpu.h"

namespace perf::allreduce {
namespace {

std::shared_ptr<nzcl::gpu::Gpu> choose_gpu(int rank, Memory kind) {
  using namespace nzcl::gpu;
  if (is_emulated(kind)) return EmulatedGpu::make(static_cast<unsigned>(rank) + 1);
  const CudaDriver& driver = CudaDriver::open();
  const int count = CudaGpu::count(driver);
  if (count == 0) throw nzcl::Error(nzcl::ErrorCode::unavailable, "the CUDA driver has no GPU");
  return CudaGpu::number(driver, rank % count);
}

}  // namespace

GpuMemory::GpuMemory(nzcl::Communicator& communicator, Memory kind, std::size_t bytes)
    : copied_(is_copied(kind)),
      gpu_(choose_gpu(communicator.rank(), kind)),
      stream_(gpu_->make_stream()),
      input_(gpu_->allocate(bytes)),
      output_(gpu_->allocate(bytes)) {
  if (copied_) pinned_input_ = gpu_->pin(bytes), pinned_output_ = gpu_->pin(bytes);
  const auto where = copied_ ? nzcl::MemoryKind::host : nzcl::MemoryKind::device;
  registered_input_ = communicator.register_buffer(given_input(), bytes, where);
  registered_output_ = communicator.register_buffer(given_output(), bytes, where);
}

GpuMemory::~GpuMemory() {
  registered_input_ = {};
  registered_output_ = {};
  if (copied_) gpu_->unpin(pinned_input_), gpu_->unpin(pinned_output_);
  gpu_->free(input_);
  gpu_->free(output_);
  gpu_->destroy_stream(stream_);
}

void GpuMemory::before(std::size_t bytes, bool in_place) {
  if (!copied_) return;
  if (in_place) return read({pinned_output_.host, bytes}, output_);
  read({pinned_input_.host, bytes}, input_);
}

void GpuMemory::behind(std::size_t bytes) {
  if (copied_) write(output_, {pinned_output_.host, bytes});
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
