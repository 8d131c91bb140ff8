// Compression of a whole tensor, slice by slice, beside the plain loop that reads and writes the same arrays.
#include <fmt/format.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "nzcl/compress.h"
#include "perf/kernels/beside.h"
#include "perf/plain_loops.h"
#include "runtime/compress/compression_step.h"
#include "runtime/kernels/forced_target.h"

namespace perf::kernels {
namespace {

using nzcl::compress::CompressionStep;
using nzcl::compress::TensorState;

/// Normally distributed values, each of which occurs often, because drawing takes time. Steps begin at
/// different places, so that each has another gradient.
class Gradients {
 public:
  explicit Gradients(std::size_t elements) : elements_(elements), all_(elements + kDrawn) {
    std::mt19937 random(1);
    for (std::size_t i = 0; i < kDrawn; ++i)
      all_[i] = static_cast<float>(std::normal_distribution<double>()(random));
    for (std::size_t i = kDrawn; i < all_.size(); ++i) all_[i] = all_[i - kDrawn];
  }
  std::span<const float> next() {
    at_ = (at_ + 16 * 7919) % kDrawn / 16 * 16;  // where a cache line begins
    return std::span(all_).subspan(at_, elements_);
  }

 private:
  static constexpr std::size_t kDrawn = 999'983;
  std::size_t elements_, at_ = 0;
  std::vector<float> all_;
};

/// After this many steps, thresholds are not found anew in each step any more.
constexpr int kSettle = 10;

/// One step of compression by one thread.
void step(CompressionStep& step, std::span<const float> gradient) {
  step.begin(gradient, 0, 1);
  step.end();
  benchmark::ClobberMemory();
}

/// The bytes that count are those of gradient and residual, which are read, and of the residual, which is
/// written: the same as in the plain loop r[i] += d[i].
void compress(benchmark::State& state, std::int64_t target, const std::string& compressor) {
  const nzcl::ForcedTarget forced(target);
  const std::size_t elements = bytes_out_of_cache() / sizeof(float);
  const nzcl::Layer layer{.elements = elements};
  TensorState tensor(nzcl::compressor_from_text(compressor), {&layer, 1});
  CompressionStep compression(tensor);
  Gradients gradients(elements);
  std::vector<float> sums(elements);
  for (int i = 0; i < kSettle; ++i) step(compression, gradients.next());
  const std::uint64_t bytes = 3 * elements * sizeof(float);
  beside(
      state, bytes, [&] { step(compression, gradients.next()); }, bytes,
      [&] {
        plain_add(sums.data(), gradients.next().data(), elements);
        benchmark::ClobberMemory();
      });
  const nzcl::CompressionReport report = tensor.report();
  state.counters["sent"] = static_cast<double>(report.sent) / static_cast<double>(report.elements);
}

}  // namespace

void register_compression(const std::string& target_name, std::int64_t target) {
  for (const char* compressor :
       {"threshold:3", "topk:0.01", "topk:0.001", "topk:0.01,momentum=0.9", "topk:0.01:exact",
        "adacomp:50:slice", "adacomp:500:slice", "adacomp:50", "adacomp:500", "randomk:0.01",
        "blocktopk:0.01:256", "topk:0.01+qsgd:4", "qsgd:4", "qsgd:8", "bf16"}) {
    benchmark::RegisterBenchmark(fmt::format("compress/{}/{}", compressor, target_name).c_str(),
                                 [=](benchmark::State& state) { compress(state, target, compressor); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace perf::kernels
