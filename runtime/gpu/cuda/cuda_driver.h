// The CUDA driver, opened at run time.
#pragma once

#include <string>

#include "runtime/gpu/cuda/cuda_api.h"

namespace nzcl::gpu {

/// The driver's functions. There is one object for the process, and the library is never closed, because its
/// own threads may be running. Thread-safe.
class CudaDriver {
 public:
  /// Opens the driver at the first call. Throws Error{unavailable} if there is none, or none that works; the
  /// text says why, and it is the same at every call.
  static const CudaDriver& open();
  /// Whether this machine has such a driver, as far as can be told without opening it.
  static bool is_here();
  /// The driver if this process has opened it already, be it by nzcl or by others; otherwise nullptr.
  static const CudaDriver* opened_by_process();

  /// Opens a library as the driver. Throws Error{unavailable}.
  explicit CudaDriver(const char* library);
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  /// Throws Error{system}, with the driver's name for what is wrong, unless the result is success. `what` is
  /// the function's name.
  void check(cuda::Result result, const char* what) const;
  /// The driver's name for an error, and its sentence about it.
  std::string text_of(cuda::Result result) const;
  std::string version() const;

#define NZCL_CUDA_MEMBER(name, arguments) cuda::Result(*name) arguments = nullptr;
  // Types of arguments are in namespace cuda.
  using Result = cuda::Result;
  using Device = cuda::Device;
  using DevicePointer = cuda::DevicePointer;
  using Context = cuda::Context;
  using Module = cuda::Module;
  using Function = cuda::Function;
  using Stream = cuda::Stream;
  using IpcHandle = cuda::IpcHandle;
  NZCL_CUDA_FUNCTIONS(NZCL_CUDA_MEMBER)
#undef NZCL_CUDA_MEMBER

 private:
  void initialize();
};

/// Calls a function of the driver, and throws if it fails.
#define NZCL_CUDA_CALL(driver, function, ...) (driver).check((driver).function(__VA_ARGS__), #function)

}  // namespace nzcl::gpu
