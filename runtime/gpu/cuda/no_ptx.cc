#include "runtime/gpu/cuda/ptx.h"

namespace nzcl::gpu {

const char* const kPtx = "";

}  // namespace nzcl::gpu
