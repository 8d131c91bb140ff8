// The part of CUDA's driver interface that nzcl uses, declared here, because no header of the toolkit may be
// needed. Names, values and signatures are those of NVIDIA's documentation of the driver API.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nzcl::gpu::cuda {

using Result = int;  // CUresult
using Device = int;  // CUdevice
using DevicePointer = unsigned long long;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kNotReady = 600;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;

/// CUipcMemHandle.
struct IpcHandle {
  char bytes[64];
};
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;

// CUpointer_attribute and CUmemorytype.
inline constexpr int kAttributeContext = 1, kAttributeMemoryType = 2, kAttributeIsManaged = 8,
                     kAttributeDeviceOrdinal = 9;
inline constexpr unsigned kMemoryOfDevice = 2;

// CUdevice_attribute.
inline constexpr int kComputeMajor = 75, kComputeMinor = 76, kRdmaWritesOrdering = 118,
                     kDmabufSupported = 124;
// CUGPUDirectRDMAWritesOrdering: the GPU's own kernels see what devices have written.
inline constexpr int kOrderedForOwner = 100;
// CUmemRangeHandleType.
inline constexpr int kRangeHandleDmabuf = 1;

// CUjit_option.
inline constexpr int kJitErrorLog = 5, kJitErrorLogBytes = 6;

inline constexpr unsigned kHostRegisterPortable = 1, kHostRegisterMapped = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kCaptureStatusNone = 0, kCaptureModeRelaxed = 2;
inline constexpr unsigned kWaitForGreaterOrEqual = 0, kWriteDefault = 0;

/// Every function that is used: its name in the library, and what it takes. Those with _v2 have had another
/// signature or another meaning before.
#define NZCL_CUDA_FUNCTIONS(FUNCTION)                                                                       \
  FUNCTION(cuInit, (unsigned flags))                                                                        \
  FUNCTION(cuDriverGetVersion, (int* version))                                                              \
  FUNCTION(cuGetErrorName, (Result error, const char** text))                                               \
  FUNCTION(cuGetErrorString, (Result error, const char** text))                                             \
  FUNCTION(cuDeviceGetCount, (int* count))                                                                  \
  FUNCTION(cuDeviceGet, (Device * device, int ordinal))                                                     \
  FUNCTION(cuDeviceGetName, (char* name, int bytes, Device device))                                         \
  FUNCTION(cuDeviceGetAttribute, (int* value, int attribute, Device device))                                \
  FUNCTION(cuDevicePrimaryCtxRetain, (Context * context, Device device))                                    \
  FUNCTION(cuCtxPushCurrent_v2, (Context context))                                                          \
  FUNCTION(cuCtxPopCurrent_v2, (Context * context))                                                         \
  FUNCTION(cuPointerGetAttributes, (unsigned count, int* attributes, void** values, DevicePointer pointer)) \
  FUNCTION(cuMemGetAddressRange_v2, (DevicePointer * base, std::size_t * bytes, DevicePointer pointer))     \
  FUNCTION(cuMemGetHandleForAddressRange,                                                                   \
           (void* handle, DevicePointer pointer, std::size_t bytes, int type, unsigned long long flags))    \
  FUNCTION(cuMemHostRegister_v2, (void* memory, std::size_t bytes, unsigned flags))                         \
  FUNCTION(cuMemHostUnregister, (void* memory))                                                             \
  FUNCTION(cuMemHostGetDevicePointer_v2, (DevicePointer * pointer, void* memory, unsigned flags))           \
  FUNCTION(cuModuleLoadDataEx,                                                                              \
           (Module * module, const void* image, unsigned count, int* options, void** values))               \
  FUNCTION(cuModuleGetFunction, (Function * function, Module module, const char* name))                     \
  FUNCTION(cuLaunchKernel, (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,           \
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,    \
                            Stream stream, void** arguments, void** extra))                                 \
  FUNCTION(cuStreamCreate, (Stream * stream, unsigned flags))                                               \
  FUNCTION(cuStreamDestroy_v2, (Stream stream))                                                             \
  FUNCTION(cuStreamQuery, (Stream stream))                                                                  \
  FUNCTION(cuStreamSynchronize, (Stream stream))                                                            \
  FUNCTION(cuStreamIsCapturing, (Stream stream, int* status))                                               \
  FUNCTION(cuThreadExchangeStreamCaptureMode, (int* mode))                                                  \
  FUNCTION(cuLaunchHostFunc, (Stream stream, void (*function)(void*), void* argument))                      \
  FUNCTION(cuStreamWriteValue32_v2,                                                                         \
           (Stream stream, DevicePointer address, std::uint32_t value, unsigned flags))                     \
  FUNCTION(cuStreamWaitValue32_v2,                                                                          \
           (Stream stream, DevicePointer address, std::uint32_t value, unsigned flags))                     \
  FUNCTION(cuMemAlloc_v2, (DevicePointer * pointer, std::size_t bytes))                                     \
  FUNCTION(cuMemFree_v2, (DevicePointer pointer))                                                           \
  FUNCTION(cuMemcpyAsync, (DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream))         \
  FUNCTION(cuIpcGetMemHandle, (IpcHandle * handle, DevicePointer pointer))                                  \
  FUNCTION(cuIpcOpenMemHandle_v2, (DevicePointer * pointer, IpcHandle handle, unsigned flags))              \
  FUNCTION(cuIpcCloseMemHandle, (DevicePointer pointer))                                                    \
  FUNCTION(cuDeviceCanAccessPeer, (int* can, Device device, Device peer))                                   \
  FUNCTION(cuCtxEnablePeerAccess, (Context context, unsigned flags))

}  // namespace nzcl::gpu::cuda
