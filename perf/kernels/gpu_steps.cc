#include "perf/kernels/gpu_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <variant>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/comm/gpu/gpu_arrays.h"
#include "runtime/compress/layout.h"

namespace perf {
namespace {

using namespace nzcl::gpu;

/// Gradients that are used in turn, so that none of them is in a cache.
constexpr std::size_t kGradients = 8;
constexpr int kTimes = 24;
/// What 1 % of numbers reach that are normally distributed around 0 with variance 1.
constexpr float kReachedByOnePercent = 2.5758F;

struct Steps {
  Steps(std::shared_ptr<Gpu> on, std::uint64_t mib)
      : elements((mib << 20) / sizeof(float)),
        gpu(std::move(on)),
        stream(gpu->make_stream()),
        copy(gpu->allocate(bytes())),
        offsets(gpu->pin(elements * sizeof(std::uint16_t))),
        values(gpu->pin(bytes())),
        words(gpu->pin((slices() + 1) * (sizeof(SelectCounts) + sizeof(FoundRank)))),
        flags(gpu->pin(slices() * sizeof(std::uint32_t))) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> gradient(elements);
    std::ranges::generate(gradient, [&] { return normal(random); });
    residual.reserve(elements);
    for (const float x : gradient) residual.push_back(10 * x);
    for (std::size_t i = 0; i < kGradients; ++i) {
      gradients.push_back(gpu->allocate(bytes()));
      std::ranges::rotate(gradient, gradient.begin() + 1009);
      gpu->copy(stream, gradients.back(), gradient.data(), bytes());
      gpu->synchronize(stream);
    }
  }
  std::uint64_t bytes() const { return elements * sizeof(float); }
  std::uint64_t slices() const { return SelectJob{.elements = elements}.slices(); }

  /// Microseconds of one of many launches in a row.
  double time(auto launch) {
    launch(gradients[0]);
    gpu->synchronize(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) launch(gradients[static_cast<std::size_t>(i) % kGradients]);
    gpu->synchronize(stream);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    return took.count() / kTimes;
  }

  /// Where a threshold counts, the residual is multiplied by 0, so that all steps select the same share.
  /// AdaComp selects what grows beside a residual that is ten times the gradient, as after some steps of
  /// training. `exact`: the threshold is found in each step.
  double time_step(const nzcl::Compressor& compressor, std::uint32_t bin, bool exact) {
    const std::vector<nzcl::Layer> layers{{.elements = elements}};
    nzcl::comm::GpuArrays arrays(gpu, compressor, nzcl::compress::Layout(layers, bin));
    const bool grows = std::holds_alternative<nzcl::AdaComp>(compressor.selection);
    if (grows) arrays.write(std::as_bytes(std::span(residual)), {});
    auto* const counts = reinterpret_cast<SelectCounts*>(words.host);
    auto* const found = reinterpret_cast<FoundRank*>(words.host + (slices() + 1) * sizeof(SelectCounts));
    const double took = time([&](const std::byte* gradient) {
      SelectJob job = arrays.job();
      if (job.by == SelectJob::By::threshold && exact) job.by = SelectJob::By::rank;
      job.gradient = reinterpret_cast<const float*>(gradient);
      job.scale = grows ? 1 : 0;
      job.threshold = std::bit_cast<std::uint32_t>(kReachedByOnePercent);
      job.wanted = exact ? (job.bins > 0 ? job.bins : elements) / 100 : 0;
      job.offsets = reinterpret_cast<std::uint16_t*>(offsets.device);
      job.values = reinterpret_cast<float*>(values.device);
      job.counts = words.seen(counts);
      if (exact) job.found = words.seen(found);
      job.flags = reinterpret_cast<std::uint32_t*>(flags.device);
      job.value = ++value;
      gpu->select(stream, job);
      arrays.step_begun();
    });
    selected = 0;
    for (std::uint64_t s = 0; s < slices(); ++s) selected += counts[s].selected;
    return took;
  }

  const std::uint64_t elements;
  std::shared_ptr<Gpu> gpu;
  Stream stream;
  std::vector<float> residual;
  std::vector<std::byte*> gradients;
  std::byte* copy;
  PinnedMemory offsets, values, words, flags;
  std::uint32_t value = 0;
  std::uint64_t selected = 0;  // by the last step
};

}  // namespace

void print_gpu_steps(const std::shared_ptr<Gpu>& gpu, std::uint64_t mib) {
  Steps steps(gpu, mib);
  const std::uint64_t bytes = steps.bytes();
  const auto gbps = [](double moved, double us) { return moved / us / 1e3; };
  const double copied =
      gbps(2 * static_cast<double>(bytes),
           steps.time([&](const std::byte* from) { gpu->copy(steps.stream, steps.copy, from, bytes); }));
  fmt::print("A compressor's step on {} MiB of float32; a copy within the GPU's memory moves {:.0f} GB/s\n\n",
             mib, copied);
  fmt::print("| step | selected | us | times the tensor is read or written | GB/s | of a copy's |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  const auto row = [&](const char* name, int passes, double us) {
    const double moved = gbps(static_cast<double>(passes) * static_cast<double>(bytes), us);
    fmt::print("| {} | {:.2f} % | {:.1f} | {} | {:.0f} | {:.0f} % |\n", name,
               100.0 * static_cast<double>(steps.selected) / static_cast<double>(steps.elements), us, passes,
               moved, 100 * moved / copied);
    std::fflush(stdout);
  };
  row("AdaComp, bins of 500", 3, steps.time_step({.selection = nzcl::AdaComp{.bin = 500}}, 500, false));
  row("top-k 1 %, threshold known", 3, steps.time_step({.selection = nzcl::TopK{.ratio = 0.01}}, 0, false));
  row("top-k 1 %, exact", 9, steps.time_step({.selection = nzcl::TopK{.ratio = 0.01}}, 0, true));
  row("top-k 1 % of blocks of 256", 5,
      steps.time_step({.selection = nzcl::BlockTopK{.ratio = 0.01, .block = 256}}, 256, true));
}

}  // namespace perf
