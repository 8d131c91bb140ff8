#include "runtime/gpu/find_gpu.h"

#include "nzcl/error.h"
#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/cuda/cuda_memory.h"
#include "runtime/gpu/emulated/emulated_gpu.h"

namespace nzcl::gpu {

std::shared_ptr<Gpu> find_gpu(std::span<const std::byte> range) {
  if (auto gpu = EmulatedGpu::owner_of(range)) return gpu;
  const CudaDriver& driver = CudaDriver::open();
  return CudaGpu::number(driver, device_of(driver, range));
}

bool is_gpu_memory(std::span<const std::byte> range) {
  try {
    if (EmulatedGpu::owner_of(range)) return true;
  } catch (const Error&) {
    return true;  // not all of it, but some
  }
  const CudaDriver* const driver = CudaDriver::opened_by_process();
  return driver != nullptr && is_device_memory(*driver, range.data());
}

bool may_have_gpus() { return EmulatedGpu::are_announced() || CudaDriver::is_here(); }

std::vector<std::string> describe_gpus() {
  try {
    return CudaGpu::describe_all(CudaDriver::open());
  } catch (const Error& e) {
    return {std::string("none: ") + e.what()};
  }
}

}  // namespace nzcl::gpu
