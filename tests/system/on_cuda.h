// Tests over CUDA's driver: one in software, or with DEVICE_CHECK=1 in the environment the machine's own
// (scripts/device-check).
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/cuda/ptx.h"

namespace nzcl::test {

/// Opens the driver in software before anybody asks for the real one. It has the same name, so the system's
/// loader finds that it is there already.
void* fake();

inline bool on_device() { return std::getenv("DEVICE_CHECK") != nullptr; }

/// Functions of the driver that nzcl does not use, and those by which a test controls the one in software.
template <typename Function>
Function* driver_function(const char* name) {
  static void* const library = on_device() ? ::dlopen("libcuda.so.1", RTLD_NOW) : fake();
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    // Streams of a process share 8 queues otherwise, and here those of one rank would wait for another one's.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (!on_device()) {
      ASSERT_NE(fake(), nullptr) << ::dlerror();
    }
    if (*gpu::kPtx == '\0') GTEST_SKIP() << "this build has no kernels for GPUs (package clang)";
  }
  static std::shared_ptr<gpu::CudaGpu> gpu() { return gpu::CudaGpu::number(gpu::CudaDriver::open(), 0); }
};

/// The GPU's context is this thread's current one while it lives.
class CurrentContext {
 public:
  CurrentContext() {
    const gpu::CudaDriver& driver = gpu::CudaDriver::open();
    gpu::cuda::Device device = 0;
    gpu::cuda::Context context = nullptr;
    EXPECT_EQ(driver.cuDeviceGet(&device, 0), gpu::cuda::kSuccess);
    EXPECT_EQ(driver.cuDevicePrimaryCtxRetain(&context, device), gpu::cuda::kSuccess);
    EXPECT_EQ(driver.cuCtxPushCurrent_v2(context), gpu::cuda::kSuccess);
  }
  ~CurrentContext() {
    gpu::cuda::Context context = nullptr;
    EXPECT_EQ(gpu::CudaDriver::open().cuCtxPopCurrent_v2(&context), gpu::cuda::kSuccess);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
};

}  // namespace nzcl::test
