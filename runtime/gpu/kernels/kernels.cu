// The kernels as a program for GPUs of NVIDIA: compiled to PTX, which the driver compiles for its GPU.
// CudaGpu loads them by these names, which end with the unit's bytes, or with the number of a SelectPass or
// SumType.
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
template <typename Unit>
NZCL_ON_GPU void list(const ListJob& job) {
  GpuBlock block;
  copy_list<Unit>(block, job);
}

template <typename Unit>
NZCL_ON_GPU void tiles(const TilesJob& job) {
  GpuBlock block;
  pack_tile<Unit>(block, job);
}

template <SelectPass kPass>
NZCL_ON_GPU void step(const SelectJob& job) {
  GpuBlock block;
  run_pass<kPass>(block, job);
}

template <SumType kType>
NZCL_ON_GPU void sum(const SumJob& job) {
  GpuBlock block;
  sum_typed<kType>(block, job);
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
NZCL_KERNEL nzcl_list_16(nzcl::gpu::ListJob job) { nzcl::gpu::list<nzcl::gpu::Unit16>(job); }
NZCL_KERNEL nzcl_list_8(nzcl::gpu::ListJob job) { nzcl::gpu::list<std::uint64_t>(job); }
NZCL_KERNEL nzcl_list_4(nzcl::gpu::ListJob job) { nzcl::gpu::list<std::uint32_t>(job); }
NZCL_KERNEL nzcl_list_2(nzcl::gpu::ListJob job) { nzcl::gpu::list<std::uint16_t>(job); }
NZCL_KERNEL nzcl_list_1(nzcl::gpu::ListJob job) { nzcl::gpu::list<std::uint8_t>(job); }
NZCL_KERNEL nzcl_tiles_16(nzcl::gpu::TilesJob job) { nzcl::gpu::tiles<nzcl::gpu::Unit16>(job); }
NZCL_KERNEL nzcl_tiles_8(nzcl::gpu::TilesJob job) { nzcl::gpu::tiles<std::uint64_t>(job); }
NZCL_KERNEL nzcl_tiles_4(nzcl::gpu::TilesJob job) { nzcl::gpu::tiles<std::uint32_t>(job); }
NZCL_KERNEL nzcl_tiles_2(nzcl::gpu::TilesJob job) { nzcl::gpu::tiles<std::uint16_t>(job); }
NZCL_KERNEL nzcl_tiles_1(nzcl::gpu::TilesJob job) { nzcl::gpu::tiles<std::uint8_t>(job); }
NZCL_KERNEL nzcl_select_0(nzcl::gpu::SelectJob job) { nzcl::gpu::step<nzcl::gpu::SelectPass::put_back>(job); }
NZCL_KERNEL nzcl_select_1(nzcl::gpu::SelectJob job) { nzcl::gpu::step<nzcl::gpu::SelectPass::square>(job); }
NZCL_KERNEL nzcl_select_2(nzcl::gpu::SelectJob job) { nzcl::gpu::step<nzcl::gpu::SelectPass::clip>(job); }
NZCL_KERNEL nzcl_select_3(nzcl::gpu::SelectJob job) { nzcl::gpu::step<nzcl::gpu::SelectPass::measure>(job); }
NZCL_KERNEL nzcl_select_4(nzcl::gpu::SelectJob job) { nzcl::gpu::step<nzcl::gpu::SelectPass::rank>(job); }
NZCL_KERNEL nzcl_select_5(nzcl::gpu::SelectJob job) { nzcl::gpu::step<nzcl::gpu::SelectPass::count>(job); }
NZCL_KERNEL nzcl_select_6(nzcl::gpu::SelectJob job) { nzcl::gpu::step<nzcl::gpu::SelectPass::select>(job); }
NZCL_KERNEL nzcl_sum_0(nzcl::gpu::SumJob job) { nzcl::gpu::sum<nzcl::gpu::SumType::float32>(job); }
NZCL_KERNEL nzcl_sum_1(nzcl::gpu::SumJob job) { nzcl::gpu::sum<nzcl::gpu::SumType::float64>(job); }
NZCL_KERNEL nzcl_sum_2(nzcl::gpu::SumJob job) { nzcl::gpu::sum<nzcl::gpu::SumType::float16>(job); }
NZCL_KERNEL nzcl_sum_3(nzcl::gpu::SumJob job) { nzcl::gpu::sum<nzcl::gpu::SumType::bfloat16>(job); }
NZCL_KERNEL nzcl_sum_4(nzcl::gpu::SumJob job) { nzcl::gpu::sum<nzcl::gpu::SumType::int32>(job); }
NZCL_KERNEL nzcl_sum_5(nzcl::gpu::SumJob job) { nzcl::gpu::sum<nzcl::gpu::SumType::int64>(job); }
NZCL_KERNEL nzcl_sum_6(nzcl::gpu::SumJob job) { nzcl::gpu::sum<nzcl::gpu::SumType::uint8>(job); }
