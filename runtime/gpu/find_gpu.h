// Which GPU a range of memory belongs to.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/gpu/gpu.h"

namespace nzcl::gpu {

/// Asks whoever may know: emulated GPUs, then the CUDA driver, which is opened for it. Nothing is guessed
/// from the address. Throws Error{invalid_argument} for memory that is no GPU's, or not all of it,
/// Error{unsupported} for memory of a kind that is not provided for, and Error{unavailable} if there is no
/// driver to ask.
std::shared_ptr<Gpu> find_gpu(std::span<const std::byte> range);

/// Whether the memory is a GPU's, so that the host must not touch it. It asks the driver only if this process
/// has opened that already: without it there is no such memory.
bool is_gpu_memory(std::span<const std::byte> range);

/// Whether there may ever be memory of a GPU in this process. It opens nothing, and takes microseconds.
bool may_have_gpus();

/// The GPUs of the CUDA driver, a line for each, or the reason why there are none. For people.
std::vector<std::string> describe_gpus();

}  // namespace nzcl::gpu
