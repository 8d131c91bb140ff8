// How long a step of a compressor takes on a GPU, beside a copy of the same memory.
#pragma once

#include <memory>

#include "runtime/gpu/gpu.h"

namespace perf {

/// Prints a Markdown table for gradients of 64 MiB of float32 which are in no cache. Throws the GPU's Error.
void print_gpu_steps(const std::shared_ptr<nzcl::gpu::Gpu>& gpu);

}  // namespace perf
