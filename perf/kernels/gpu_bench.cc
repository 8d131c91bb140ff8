// nzcl_gpu_bench: how long the kernels of a GPU take for 64 MiB, as Markdown tables.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "perf/kernels/gpu_steps.h"
#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/emulated/emulated_gpu.h"

namespace perf {
namespace {

using namespace nzcl::gpu;

constexpr std::uint64_t kBlockBytes = 1024;  // 256 float32
constexpr std::uint64_t kSliceBlocks = 512;
constexpr std::uint64_t kTileElements = 65536;
/// Tensors that are used in turn, so that none of them is in a cache.
constexpr std::size_t kTensors = 8;
constexpr int kTimes = 40;

struct Bench {
  Bench(std::shared_ptr<Gpu> on, std::uint64_t mib)
      : gpu(std::move(on)),
        stream(gpu->make_stream()),
        shape{.bytes = mib << 20, .block_bytes = kBlockBytes, .slice_blocks = kSliceBlocks},
        tiles{.bytes = mib << 20, .block_bytes = sizeof(float), .slice_blocks = kTileElements} {
    for (std::size_t i = 0; i < kTensors; ++i) tensors.push_back(gpu->allocate(shape.bytes));
    on_gpu = gpu->allocate(shape.bytes);
    pinned = gpu->pin(shape.bytes);
    bits = gpu->pin(shape.words() * sizeof(std::uint64_t));
    flags = gpu->pin(shape.slices() * sizeof(std::uint32_t));
    union_bits = gpu->pin(bits.bytes);
    sets = gpu->pin(tiles.words() * sizeof(std::uint64_t));
    counts = gpu->pin(2 * tiles.slices() * sizeof(std::uint32_t));  // and flags
    table = gpu->pin(sizeof(PeerTable));
    for (std::size_t i = 0; i < kTensors; ++i) opened.push_back(gpu->open(gpu->share(tensors[i])));
  }

  void fill(double density) {
    std::mt19937 random(1);
    std::vector<std::byte> tensor(shape.bytes);
    auto* const words = reinterpret_cast<std::uint64_t*>(bits.host);
    std::memset(words, 0, bits.bytes);
    for (std::uint64_t b = 0; b < shape.blocks(); ++b) {
      if (std::uniform_real_distribution()(random) >= density) continue;
      std::memset(tensor.data() + b * kBlockBytes, 1, kBlockBytes);
      words[b / 64] |= std::uint64_t{1} << b % 64;
    }
    for (std::byte* const to : tensors) gpu->copy(stream, to, tensor.data(), shape.bytes);
    gpu->synchronize(stream);
  }

  /// The same, with single elements that are not zero.
  void fill_elements(double density) {
    std::mt19937 random(1);
    std::vector<float> tensor(shape.bytes / sizeof(float));
    for (float& element : tensor) element = std::uniform_real_distribution()(random) < density ? 1.0F : 0.0F;
    for (std::byte* const to : tensors) gpu->copy(stream, to, tensor.data(), shape.bytes);
    gpu->synchronize(stream);
  }

  /// Microseconds of one of many launches in a row.
  double time(auto launch) {
    launch(tensors[0]);
    gpu->synchronize(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) launch(tensors[static_cast<std::size_t>(i) % kTensors]);
    gpu->synchronize(stream);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    return took.count() / kTimes;
  }
  double time_pack(std::byte* to) {
    return time([&](const std::byte* tensor) {
      gpu->pack(stream, {.shape = shape,
                         .tensor = tensor,
                         .packed = to,
                         .bits = reinterpret_cast<std::uint64_t*>(bits.device),
                         .flags = reinterpret_cast<std::uint32_t*>(flags.device),
                         .value = ++value});
    });
  }
  double time_pack_tiles(std::byte* to) {
    auto* const words = reinterpret_cast<std::uint32_t*>(counts.device);
    return time([&](const std::byte* tensor) {
      gpu->pack_tiles(stream, {.shape = tiles,
                               .tensor = tensor,
                               .packed = to,
                               .sets = reinterpret_cast<std::uint64_t*>(sets.device),
                               .counts = words,
                               .flags = words + tiles.slices(),
                               .value = ++value});
    });
  }
  /// A copy to pinned memory by the driver, which takes what it takes.
  double time_copy() {
    return time([&](const std::byte* tensor) { gpu->copy(stream, pinned.device, tensor, shape.bytes); });
  }
  double time_place(const std::byte* from) {
    return time([&](std::byte* tensor) {
      gpu->place(stream, {.shape = shape,
                          .slices = shape.slices(),
                          .tensor = tensor,
                          .staged = from,
                          .bits = reinterpret_cast<std::uint64_t*>(bits.device),
                          .fill = true});
    });
  }

  /// One of two ranks sums its half, of what both have in the memory of this GPU. The tensors are not taken
  /// in turn, as each launch reads two halves.
  double time_sum() {
    auto& peers = *reinterpret_cast<PeerTable*>(table.host);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      peers.contribution[rank] = opened[rank];
      peers.bits[rank] = reinterpret_cast<const std::uint64_t*>(bits.device);
    }
    return time([&](const std::byte*) {
      gpu->sum(stream, {.shape = shape,
                        .ranks = 2,
                        .slices_each = shape.slices() / 2,
                        .peers = reinterpret_cast<const PeerTable*>(table.device),
                        .result = on_gpu,
                        .union_bits = reinterpret_cast<std::uint64_t*>(union_bits.device)});
    });
  }

  std::shared_ptr<Gpu> gpu;
  Stream stream;
  const Shape shape, tiles;
  std::vector<std::byte*> tensors, opened;
  std::byte* on_gpu = nullptr;
  PinnedMemory pinned, bits, flags, union_bits, table, sets, counts;
  std::uint32_t value = 0;
};

int run(std::string_view memory, std::uint64_t mib) {
  constexpr std::uint64_t kMostMib = 1024;
  if ((memory != "cuda" && memory != "emulated") || mib == 0 || mib > kMostMib) {
    fmt::print("usage: nzcl_gpu_bench cuda|emulated [MIB]\nMIB: of each tensor, 64 by default, at most {}\n",
               kMostMib);
    return memory == "--help" ? 0 : 2;
  }
  std::shared_ptr<Gpu> gpu = EmulatedGpu::make();
  if (memory == "cuda") gpu = CudaGpu::number(CudaDriver::open(), 0);
  Bench bench(gpu, mib);
  fmt::print("{}: kernels for {} MiB in blocks of 1 KiB, {} tensors in turn, in us\n\n", gpu->name(), mib,
             kTensors);
  fmt::print("| density | pack to the GPU's memory | pack to pinned memory | place from pinned memory | ");
  fmt::print(
      "sum half of two in the GPU's memory | place from the GPU's memory |\n|---|---|---|---|---|---|\n");
  for (const double density : {1.0, 0.1, 0.01}) {
    bench.fill(density);
    const double own = bench.time_pack(bench.on_gpu), pinned = bench.time_pack(bench.pinned.device);
    bench.fill(density);  // packing has written the bits, but for what may be wrong with it
    const double place = bench.time_place(bench.pinned.device), place_own = bench.time_place(bench.on_gpu);
    bench.fill(density);  // with the same density, but of what was placed
    fmt::print("| {:g} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n", density, own, pinned, place,
               bench.time_sum(), place_own);
    std::fflush(stdout);
  }
  fmt::print(
      "\n| single elements, density | pack to the GPU's memory | pack to pinned memory | copy whole to ");
  fmt::print("pinned memory |\n|---|---|---|---|\n");
  for (const double density : {1.0, 0.5, 0.1, 0.01, 0.001}) {
    bench.fill_elements(density);
    fmt::print("| {:g} | {:.1f} | {:.1f} | {:.1f} |\n", density, bench.time_pack_tiles(bench.on_gpu),
               bench.time_pack_tiles(bench.pinned.device), bench.time_copy());
    std::fflush(stdout);
  }
  fmt::print("\n");
  print_gpu_steps(gpu, mib);
  return 0;
}

}  // namespace
}  // namespace perf

int main(int argc, char** argv) {
  try {
    constexpr std::uint64_t kMib = 64;
    const bool known = argc == 2 || argc == 3;
    return perf::run(known ? argv[1] : "", argc == 3 ? std::strtoull(argv[2], nullptr, 10) : kMib);
  } catch (const std::exception& e) {
    fmt::print(stderr, "nzcl_gpu_bench: {}\n", e.what());
    return 1;
  }
}
