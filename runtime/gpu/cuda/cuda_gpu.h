// A GPU of NVIDIA, through the CUDA driver.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/gpu/cuda/cuda_driver.h"
#include "runtime/gpu/gpu.h"

namespace nzcl::gpu {

/// Works in the GPU's primary context, which is that of the CUDA runtime and of PyTorch. A caller's current
/// context is left as it was. Thread-safe.
class CudaGpu final : public Gpu {
 public:
  /// GPU number `ordinal`, made at the first call: its kernels are compiled then. Throws Error{unsupported}
  /// if it is too old or this build has no kernels.
  static std::shared_ptr<CudaGpu> number(const CudaDriver& driver, int ordinal);
  static int count(const CudaDriver& driver);
  static std::vector<std::string> describe_all(const CudaDriver& driver);

  std::string name() const override { return name_; }
  PinnedMemory pin(std::size_t bytes) override;
  void unpin(const PinnedMemory& memory) noexcept override;
  SharedMemory share(std::byte* memory) override;
  std::byte* open(const SharedMemory& memory) override;
  void close(const SharedMemory& memory, std::byte* opened) noexcept override;
  LentMemory lend(std::span<std::byte> bytes) override;
  gpu::Stream make_stream() override;
  void destroy_stream(gpu::Stream stream) noexcept override;
  void pack(gpu::Stream stream, const PackJob& job) override;
  void pack_tiles(gpu::Stream stream, const TilesJob& job) override;
  void place(gpu::Stream stream, const PlaceJob& job) override;
  void sum(gpu::Stream stream, const SumJob& job) override;
  void copy_list(gpu::Stream stream, const ListJob& job) override;
  void run_pass(gpu::Stream stream, const SelectJob& job) override;
  void raise(gpu::Stream stream, std::uint32_t* flag, std::uint32_t value) override;
  void await(gpu::Stream stream, std::uint32_t* flag, std::uint32_t value) override;
  void call(gpu::Stream stream, HostFunction function, void* argument) override;
  bool captures(gpu::Stream stream) override;
  std::optional<std::string> why_broken(gpu::Stream stream) noexcept override;
  std::byte* allocate(std::size_t bytes) override;
  void free(std::byte* memory) noexcept override;
  void copy(gpu::Stream stream, void* to, const void* from, std::size_t bytes) override;
  void synchronize(gpu::Stream stream) override;

 private:
  class InContext;
  CudaGpu(const CudaDriver& driver, int ordinal);
  std::byte* open_of_own_process(const SharedMemory& memory);
  void load_kernels();
  void run_kernels_once();
  /// `words` of bits have room in the memory that the threads of a block share.
  void launch(cuda::Function kernel, gpu::Stream stream, std::uint64_t slices, std::uint64_t words,
              void* job);

  const CudaDriver& driver_;
  const int ordinal_;
  std::string name_;
  cuda::Context context_ = nullptr;  // never released: memory of the program is in it too
  std::array<cuda::Function, 17> pack_{}, tiles_{}, place_{}, list_{};  // by the unit's bytes
  std::array<cuda::Function, kSelectPasses> passes_{};
  std::array<cuda::Function, kSumTypes> sums_{};
};

}  // namespace nzcl::gpu
