// What the CUDA driver says about a pointer.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/gpu/cuda/cuda_driver.h"

namespace nzcl::gpu {

/// The number of the GPU whose memory the whole range is. The range may consist of several allocations that
/// are mapped one behind the other. Throws Error{invalid_argument} for memory of the host, or a range that is
/// longer than what is allocated; Error{unsupported} for managed memory, and for memory of a context that is
/// not its GPU's primary one, which is the only one that nzcl uses.
int device_of(const CudaDriver& driver, std::span<const std::byte> range);

/// Whether the byte is memory of a GPU. A driver that nobody has initialised has no such memory.
bool is_device_memory(const CudaDriver& driver, const std::byte* at);

}  // namespace nzcl::gpu
