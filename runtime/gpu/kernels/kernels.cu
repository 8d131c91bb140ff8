// The kernels as a program for GPUs of NVIDIA: compiled to PTX, which the driver compiles for its GPU.
// CudaGpu loads them by these names; N is the unit's bytes.
#include "runtime/gpu/kernels/gpu_shim.cuh"

namespace nzcl::gpu {
namespace {

template <typename Unit>
NZCL_ON_GPU void pack(const PackJob& job) {
  GpuBlock block;
  pack_slice<Unit>(block, job);
}
template <typename Unit>
NZCL_ON_GPU void place(const PlaceJob& job) {
  GpuBlock block;
  place_slice<Unit>(block, job);
}

}  // namespace
}  // namespace nzcl::gpu

// Two blocks of threads have to fit a multiprocessor, so that one reads while the other waits at a barrier.
#define NZCL_KERNEL extern "C" __attribute__((global, launch_bounds(nzcl::gpu::kThreads, 2))) void

NZCL_KERNEL nzcl_pack_16(nzcl::gpu::PackJob job) { nzcl::gpu::pack<nzcl::gpu::Unit16>(job); }
NZCL_KERNEL nzcl_pack_8(nzcl::gpu::PackJob job) { nzcl::gpu::pack<std::uint64_t>(job); }
NZCL_KERNEL nzcl_pack_4(nzcl::gpu::PackJob job) { nzcl::gpu::pack<std::uint32_t>(job); }
NZCL_KERNEL nzcl_pack_2(nzcl::gpu::PackJob job) { nzcl::gpu::pack<std::uint16_t>(job); }
NZCL_KERNEL nzcl_pack_1(nzcl::gpu::PackJob job) { nzcl::gpu::pack<std::uint8_t>(job); }
NZCL_KERNEL nzcl_place_16(nzcl::gpu::PlaceJob job) { nzcl::gpu::place<nzcl::gpu::Unit16>(job); }
NZCL_KERNEL nzcl_place_8(nzcl::gpu::PlaceJob job) { nzcl::gpu::place<std::uint64_t>(job); }
NZCL_KERNEL nzcl_place_4(nzcl::gpu::PlaceJob job) { nzcl::gpu::place<std::uint32_t>(job); }
NZCL_KERNEL nzcl_place_2(nzcl::gpu::PlaceJob job) { nzcl::gpu::place<std::uint16_t>(job); }
NZCL_KERNEL nzcl_place_1(nzcl::gpu::PlaceJob job) { nzcl::gpu::place<std::uint8_t>(job); }
