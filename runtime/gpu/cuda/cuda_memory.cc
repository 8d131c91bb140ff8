#include "runtime/gpu/cuda/cuda_memory.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "nzcl/error.h"

namespace nzcl::gpu {
namespace {

struct Attributes {
  cuda::Context context = nullptr;
  unsigned memory_type = 0, managed = 0;
  int ordinal = -1;
};

/// For memory that the driver does not know, it succeeds and leaves zeros.
cuda::Result ask(const CudaDriver& driver, std::uintptr_t at, Attributes& found) {
  std::array attributes{cuda::kAttributeContext, cuda::kAttributeMemoryType, cuda::kAttributeIsManaged,
                        cuda::kAttributeDeviceOrdinal};
  std::array<void*, 4> values{&found.context, &found.memory_type, &found.managed, &found.ordinal};
  return driver.cuPointerGetAttributes(attributes.size(), attributes.data(), values.data(), at);
}

Attributes attributes_of(const CudaDriver& driver, std::uintptr_t at) {
  Attributes found;
  driver.check(ask(driver, at, found), "cuPointerGetAttributes");
  return found;
}

}  // namespace

bool is_device_memory(const CudaDriver& driver, const std::byte* at) {
  Attributes found;
  return ask(driver, reinterpret_cast<std::uintptr_t>(at), found) == cuda::kSuccess &&
         found.memory_type == cuda::kMemoryOfDevice && found.managed == 0;
}

int device_of(const CudaDriver& driver, std::span<const std::byte> range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  const auto text = [&] { return fmt::format("{} bytes at {:#x}", range.size(), begin); };
  int ordinal = -1;
  for (std::uintptr_t at = begin; at < begin + range.size();) {
    const Attributes found = attributes_of(driver, at);
    if (found.managed != 0)
      throw Error(ErrorCode::unsupported,
                  text() + " are managed memory, which is not supported yet; allocate it with cudaMalloc");
    if (found.memory_type != cuda::kMemoryOfDevice)
      throw Error(ErrorCode::invalid_argument,
                  at == begin ? text() + " are no memory of a GPU, as the CUDA driver says"
                              : text() + " are longer than what is allocated there");
    if (ordinal >= 0 && found.ordinal != ordinal)
      throw Error(ErrorCode::unsupported, text() + " belong to several GPUs");
    ordinal = found.ordinal;
    cuda::DevicePointer base = 0;
    std::size_t bytes = 0;
    cuda::Device device = 0;
    cuda::Context primary = nullptr, before = nullptr;
    NZCL_CUDA_CALL(driver, cuDeviceGet, &device, ordinal);
    NZCL_CUDA_CALL(driver, cuDevicePrimaryCtxRetain, &primary, device);
    if (found.context != nullptr && found.context != primary)
      throw Error(
          ErrorCode::unsupported,
          text() + " belong to a context that is not their GPU's primary one, which is not supported");
    NZCL_CUDA_CALL(driver, cuCtxPushCurrent_v2, primary);
    const cuda::Result result = driver.cuMemGetAddressRange_v2(&base, &bytes, at);
    driver.cuCtxPopCurrent_v2(&before);
    driver.check(result, "cuMemGetAddressRange");
    if (base + bytes <= at) throw Error(ErrorCode::internal, "cuMemGetAddressRange gave another range");
    at = base + bytes;
  }
  return ordinal;
}

}  // namespace nzcl::gpu
