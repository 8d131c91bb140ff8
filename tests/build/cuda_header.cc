// What runtime/gpu/cuda/cuda_api.h declares is what NVIDIA's own header says. It is only compiled, where that
// header is installed: nothing of nzcl's needs it otherwise.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "runtime/gpu/cuda/cuda_api.h"

namespace {

using namespace nzcl::gpu;

/// Whether a function that is called with one type understands the other: both are integers or enumerations
/// of one size, or structures of one size, or pointers to such.
template <typename Own, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<Own> && std::is_pointer_v<Theirs>) {
    using OwnObject = std::remove_cv_t<std::remove_pointer_t<Own>>;
    using TheirObject = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
    if constexpr (std::is_function_v<OwnObject>)
      return std::is_same_v<OwnObject, TheirObject>;
    else if constexpr (std::is_void_v<OwnObject> || std::is_void_v<TheirObject> || std::is_class_v<OwnObject>)
      return true;  // handles, whose structures nobody knows
    else
      return alike<OwnObject, TheirObject>();
  } else if constexpr (std::is_class_v<Own> && std::is_class_v<Theirs>) {
    return sizeof(Own) == sizeof(Theirs);
  } else {
    constexpr bool own = std::is_integral_v<Own> || std::is_enum_v<Own>;
    constexpr bool theirs = std::is_integral_v<Theirs> || std::is_enum_v<Theirs>;
    return own && theirs && sizeof(Own) == sizeof(Theirs);
  }
}

template <typename OwnResult, typename... Own, typename TheirResult, typename... Theirs>
constexpr bool same_call(OwnResult (*)(Own...), TheirResult (*)(Theirs...)) {
  if constexpr (sizeof...(Own) == sizeof...(Theirs))
    return alike<OwnResult, TheirResult>() && (alike<Own, Theirs>() && ...);
  else
    return false;
}

namespace own {
using namespace cuda;
#define NZCL_OWN(name, arguments) Result(*const name) arguments = nullptr;
NZCL_CUDA_FUNCTIONS(NZCL_OWN)
}  // namespace own

#define NZCL_SAME(name, arguments) \
  static_assert(same_call(decltype(own::name){}, decltype(&::name){}), #name);
NZCL_CUDA_FUNCTIONS(NZCL_SAME)

static_assert(cuda::kSuccess == CUDA_SUCCESS && cuda::kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(cuda::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(cuda::kPeerAccessAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(sizeof(cuda::IpcHandle) == sizeof(CUipcMemHandle));
static_assert(cuda::kIpcLazyEnablePeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(cuda::kAttributeContext == CU_POINTER_ATTRIBUTE_CONTEXT);
static_assert(cuda::kAttributeMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cuda::kAttributeIsManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(cuda::kAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(cuda::kMemoryOfDevice == CU_MEMORYTYPE_DEVICE);
static_assert(cuda::kComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(cuda::kComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cuda::kRdmaWritesOrdering == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(cuda::kDmabufSupported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(cuda::kOrderedForOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
static_assert(cuda::kRangeHandleDmabuf == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
static_assert(cuda::kJitErrorLog == CU_JIT_ERROR_LOG_BUFFER);
static_assert(cuda::kJitErrorLogBytes == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
static_assert(cuda::kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cuda::kHostRegisterMapped == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kCaptureStatusNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(cuda::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(cuda::kWaitForGreaterOrEqual == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(cuda::kWriteDefault == CU_STREAM_WRITE_VALUE_DEFAULT);

}  // namespace
