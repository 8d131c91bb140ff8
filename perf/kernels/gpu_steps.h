// How long a step of a compressor takes on a GPU, beside a copy of the same memory.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/gpu/gpu.h"

namespace perf {

/// Prints a Markdown table for gradients of so many MiB of float32, of which a cache has little if they are
/// large. Throws the GPU's Error.
void print_gpu_steps(const std::shared_ptr<nzcl::gpu::Gpu>& gpu, std::uint64_t mib);

}  // namespace perf
