// The kernels as PTX, which the build makes of kernels.cu.
#pragma once

namespace nzcl::gpu {

/// The program's text; empty if the build had no clang to compile it.
extern const char* const kPtx;

}  // namespace nzcl::gpu
