// A device of libtorch whose memory is that of emulated GPUs.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include "runtime/gpu/emulated/emulated_gpu.h"

namespace nzcl::test {

/// How many there are. Each rank of a test has one, as each of a real job has.
inline constexpr int kEmulatedDevices = 4;

/// libtorch knows it as PrivateUse1. As with CUDA, a stream's number is its handle, tensors are filled and
/// copied in the order of the thread's current stream, and the host cannot touch their memory. It makes
/// tensors, copies them and takes views of them, and does nothing else.
inline c10::Device emulated_device(int number) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(number)};
}
gpu::EmulatedGpu& emulated_gpu(int number);
/// Another stream than the device's default one. It lives as long as the process.
c10::Stream new_stream(int number);

}  // namespace nzcl::test
