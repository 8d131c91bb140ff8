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
/// tensors, copies them and takes views of them; sparse tensors of the COO form consist of such. What little
/// else is computed on tensors there, the host computes with copies of them.
inline c10::Device emulated_device(int number) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(number)};
}
gpu::EmulatedGpu& emulated_gpu(int number);
/// How often a tensor of this device was copied to the host or from there: what somebody asked for, and not
/// what the device itself does because the host computes for it.
int copies_by_host(int number);
/// Whether libtorch was told that this stream uses the tensor's memory, too.
bool is_recorded(const at::Tensor& tensor, const c10::Stream& stream);
/// Another stream than the device's default one. It lives as long as the process.
c10::Stream new_stream(int number);

}  // namespace nzcl::test
