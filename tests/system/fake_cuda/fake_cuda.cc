// A CUDA driver in software, with the functions that nzcl uses, as a library of the driver's name. It is as
// strict as the documentation allows: calls without a current context, without cuInit(), with memory that was
// not allocated or registered, with misaligned or too large launches fail. Memory cannot be touched by the
// host, streams are late, and launches run the kernels on the CPU.
//
// This file has devices, contexts and streams; fake_memory.cc has memory, and fake_kernels.cc has kernels.
#include <cstdlib>
#include <cstring>

#include "tests/system/fake_cuda/fake_state.h"

using namespace nzcl::test::fake;

// --- What a test controls.

/// From now on every call fails with this error.
FAKE fakeCudaBreak(int error) {
  state().broken = error;
  return kSuccess;
}

// --- The driver.

FAKE cuInit(unsigned) {
  if (const char* const wrong = std::getenv("FAKE_CUDA_INIT")) return std::atoi(wrong);
  state().initialized = true;
  return state().broken;
}
FAKE cuDriverGetVersion(int* version) {
  *version = 12020;
  return kSuccess;
}
FAKE cuGetErrorName(int error, const char** text) {
  *text = error == 700             ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 709           ? "CUDA_ERROR_CONTEXT_IS_DESTROYED"
          : error == 100           ? "CUDA_ERROR_NO_DEVICE"
          : error == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE"
          : error == kOutOfMemory  ? "CUDA_ERROR_OUT_OF_MEMORY"
                                   : nullptr;
  return *text != nullptr ? kSuccess : kInvalidValue;
}
FAKE cuGetErrorString(int error, const char** text) {
  *text = error == 700            ? "an illegal memory access was encountered"
          : error == 709          ? "context is destroyed"
          : error == kOutOfMemory ? "out of memory"
                                  : nullptr;
  return *text != nullptr ? kSuccess : kInvalidValue;
}
FAKE cuDeviceGetCount(int* count) {
  *count = 1;
  return ready(false);
}
FAKE cuDeviceGet(Device* device, int ordinal) {
  *device = 40 + ordinal;
  return ordinal == 0 ? ready(false) : kInvalidValue;
}
FAKE cuDeviceGetName(char* name, int bytes, Device device) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(bytes));
  return device == 40 ? ready(false) : kInvalidValue;
}
FAKE cuDeviceGetAttribute(int* value, int attribute, Device) {
  *value = attribute == cuda::kComputeMajor         ? 9
           : attribute == cuda::kRdmaWritesOrdering ? cuda::kOrderedForOwner
           : attribute == cuda::kDmabufSupported    ? 1
                                                    : 0;
  return ready(false);
}
FAKE cuDevicePrimaryCtxRetain(Context* context, Device) {
  *context = kPrimary;
  return ready(false);
}
FAKE cuCtxPushCurrent_v2(Context context) {
  if (context != kPrimary) return kInvalidContext;
  if (const int wrong = ready(false)) return wrong;
  ++contexts;
  return kSuccess;
}
FAKE cuCtxPopCurrent_v2(Context* context) {
  if (contexts == 0) return kInvalidContext;
  --contexts;
  *context = kPrimary;
  return kSuccess;
}
FAKE cuStreamCreate(FakeStream* stream, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (flags != cuda::kStreamNonBlocking) return kInvalidValue;
  auto made = std::make_unique<EmulatedStream>(2);
  *stream = reinterpret_cast<FakeStream>(made.get());
  const std::scoped_lock lock(state().mutex);
  state().streams[*stream] = std::move(made);
  return kSuccess;
}
FAKE cuStreamDestroy_v2(FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  std::unique_ptr<EmulatedStream> ending;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().streams.find(stream);
  if (found == state().streams.end()) return kInvalidHandle;
  ending = std::move(found->second);
  state().streams.erase(found);
  return kSuccess;
}
FAKE cuStreamQuery(FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return stream_of(stream) != nullptr ? cuda::kNotReady : kInvalidHandle;
}
FAKE cuStreamIsCapturing(FakeStream stream, int* status) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  *status = state().captured.contains(stream) ? 1 : cuda::kCaptureStatusNone;
  return kSuccess;
}
FAKE cuStreamBeginCapture_v2(FakeStream stream, int mode) {
  if (const int wrong = ready()) return wrong;
  if (stream == nullptr || mode < 0 || mode > 2) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  state().captured[stream] = std::make_unique<Graph>();
  return kSuccess;
}
FAKE cuStreamEndCapture(FakeStream stream, void** graph) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().captured.find(stream);
  if (found == state().captured.end()) return kInvalidValue;
  *graph = found->second.release();
  state().captured.erase(found);
  return kSuccess;
}
FAKE cuGraphInstantiateWithFlags(void** launchable, void* graph, unsigned long long flags) {
  *launchable = graph;
  return flags == 0 ? ready() : kInvalidValue;
}
FAKE cuGraphLaunch(void* launchable, FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  for (const auto& work : *static_cast<const Graph*>(launchable)) {
    if (const int wrong = add(stream, work)) return wrong;
  }
  return kSuccess;
}
FAKE cuStreamSynchronize(FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  EmulatedStream* queue = nullptr;
  {
    const std::scoped_lock lock(state().mutex);
    queue = stream_of(stream);
  }
  if (queue == nullptr) return kInvalidHandle;
  queue->synchronize();
  return state().broken;
}
FAKE cuStreamWriteValue32_v2(FakeStream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  auto* const word = reinterpret_cast<std::uint32_t*>(reach(address, 4));
  if (word == nullptr || flags != cuda::kWriteDefault) return kInvalidValue;
  return add(stream, [word, value] { std::atomic_ref(*word).store(value); });
}
FAKE cuStreamWaitValue32_v2(FakeStream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto* const word = reinterpret_cast<const std::uint32_t*>(reach(address, 4));
  EmulatedStream* const queue = stream_of(stream);
  if (word == nullptr || queue == nullptr || flags != cuda::kWaitForGreaterOrEqual) return kInvalidValue;
  return add(stream, [queue, word, value] { queue->await(word, value); });
}
FAKE cuLaunchHostFunc(FakeStream stream, void (*function)(void*), void* argument) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return add(stream, [function, argument] { function(argument); });
}
FAKE cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}
