#include "perf/allreduce/compressed.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <optional>
#include <random>

#include "nzcl/compress.h"
#include "perf/allreduce/totals.h"
#include "perf/cpu_seconds.h"
#include "perf/plain_compressor.h"
#include "perf/plain_results.h"

namespace perf::allreduce {
namespace {

/// One rank's buffers and states.
class CompressedBench {
 public:
  CompressedBench(nzcl::Communicator& communicator, const Settings& settings, const Problem& p)
      : communicator_(communicator),
        settings_(settings),
        problem_(p),
        state_(nzcl::compressor_from_text(settings.compress), p.count),
        gradient_(p.count),
        output_(std::max<std::uint64_t>(1, p.count)),
        some_(999'983),
        registered_output_(communicator.register_buffer(output_.data(), output_.size() * sizeof(float))),
        totals_(communicator, static_cast<std::size_t>(settings.iterations) + 8) {
    std::mt19937 random(static_cast<unsigned>(communicator.rank()) + 1);
    for (float& v : some_) v = static_cast<float>(std::normal_distribution<double>()(random));
    if (settings.check) plain_.emplace(state_.compressor(), p.count);
  }

  Measurement run();

 private:
  /// Every element gets another of the drawn values in each step.
  void make_gradient(int step) {
    const std::size_t first = static_cast<std::size_t>(step + settings_.warm_up) * 7919;
    for (std::size_t i = 0; i < gradient_.size(); ++i) gradient_[i] = some_[(first + i) % some_.size()];
  }
  nzcl::Work start() {
    return communicator_.allreduce_compressed(
        {.state = &state_, .input = gradient_.data(), .output = output_.data(), .op = problem_.op});
  }
  std::uint64_t wrong(std::vector<float> expected, const std::vector<float>& errors_before);
  std::uint64_t wrong_codes(const std::vector<float>& sums, const std::vector<float>& errors_before);
  bool codes_results() const { return !std::holds_alternative<nzcl::AsIs>(state_.compressor().results); }
  template <typename T>
  void reduce(std::vector<T>& values, nzcl::DataType type, nzcl::ReduceOp op);

  nzcl::Communicator& communicator_;
  const Settings& settings_;
  const Problem& problem_;
  nzcl::CompressorState state_;
  std::optional<PlainCompressor> plain_;
  std::vector<float> gradient_, output_, some_;
  nzcl::RegisteredBuffer registered_output_;
  Totals totals_;
};

template <typename T>
void CompressedBench::reduce(std::vector<T>& values, nzcl::DataType type, nzcl::ReduceOp op) {
  const auto registered = communicator_.register_buffer(values.data(), values.size() * sizeof(T));
  communicator_
      .allreduce({.input = values.data(),
                  .output = values.data(),
                  .count = values.size(),
                  .type = type,
                  .op = op,
                  .dense = true})
      .wait();
}

/// `expected` is what this rank must have sent. The dense allreduce makes of it what the result must be, or,
/// if results are coded, what it must be a code of.
std::uint64_t CompressedBench::wrong(std::vector<float> expected, const std::vector<float>& errors_before) {
  if (expected.empty()) return 0;
  reduce(expected, nzcl::DataType::float32, problem_.op);
  std::uint64_t bad = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    bad += std::bit_cast<std::uint32_t>(expected[i]) != std::bit_cast<std::uint32_t>(output_[i]) ? 1 : 0;
  // Results of tensors that travel in one message are not coded.
  const bool exact = totals_.sum({static_cast<double>(bad)})[0] == 0;
  return codes_results() && !exact ? wrong_codes(expected, errors_before) : bad;
}

/// All ranks must have the same bits, and one of them must have owned each element.
std::uint64_t CompressedBench::wrong_codes(const std::vector<float>& sums,
                                           const std::vector<float>& errors_before) {
  std::vector<std::int32_t> most(sums.size()), owners(sums.size()), changed(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) most[i] = std::bit_cast<std::int32_t>(output_[i]);
  reduce(most, nzcl::DataType::int32, nzcl::ReduceOp::max);
  const auto parts = perf::parts_in(
      state_.compressor(),
      {.sums = sums, .before = errors_before, .after = state_.result_residual(), .results = output_});
  for (std::size_t i = 0; i < sums.size(); ++i) {
    changed[i] = parts[i] == Part::owned ? 1 : 0;
    owners[i] = parts[i] == Part::owned || parts[i] == Part::both ? 1 : 0;
  }
  reduce(owners, nzcl::DataType::int32, nzcl::ReduceOp::sum);
  reduce(changed, nzcl::DataType::int32, nzcl::ReduceOp::sum);
  std::uint64_t bad = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const bool nothing = sums[i] == 0 && output_[i] == 0;
    const bool good = most[i] == std::bit_cast<std::int32_t>(output_[i]) && parts[i] != Part::wrong &&
                      changed[i] <= 1 && (owners[i] > 0 || nothing);
    bad += good ? 0 : 1;
  }
  return bad;
}

Measurement CompressedBench::run() {
  Measurement m;
  double sent_bytes = 0, bad = 0, cpu = 0, density = 0, union_density = 0, coded = 0, ratio = 0, received = 0;
  for (int i = -settings_.warm_up; i < settings_.iterations; ++i) {
    make_gradient(i);
    std::vector<float> expected, errors_before;
    if (plain_ && i <= 0) expected = plain_->step(gradient_, communicator_.rank(), communicator_.size());
    if (i == 0) errors_before.assign(state_.result_residual().begin(), state_.result_residual().end());
    communicator_.barrier();
    const double cpu_before = cpu_seconds();
    const auto bytes_before = communicator_.statistics().bytes_sent;
    const auto begin = std::chrono::steady_clock::now();
    nzcl::Work work = start();
    work.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i >= 0) {
      m.seconds.push_back(took.count());
      sent_bytes += static_cast<double>(communicator_.statistics().bytes_sent - bytes_before);
      cpu += cpu_seconds() - cpu_before;
      const auto of_work = work.statistics();
      m.algorithm = of_work.algorithm;
      const double blocks = std::max(1.0, static_cast<double>(of_work.blocks));
      received += static_cast<double>(of_work.bytes_received);
      union_density += static_cast<double>(of_work.union_blocks) / blocks;
    }
    communicator_.barrier();  // the rest must not take a core from ranks that still work
    if (i >= 0) {
      const nzcl::CompressionReport report = state_.report();
      coded += static_cast<double>(report.coded_bytes);
      ratio += report.coded_ratio;
      if (report.sent > 0) density += 1 / report.element_ratio;
    }
    if (i == 0 && settings_.check) bad = static_cast<double>(wrong(std::move(expected), errors_before));
  }
  std::vector<double> most = m.seconds;
  most.push_back(sent_bytes / settings_.iterations);
  most = totals_.largest(most);
  m.wire_bytes = most.back();
  most.pop_back();
  m.seconds = std::move(most);
  std::sort(m.seconds.begin(), m.seconds.end());
  const double n = communicator_.size(), times = settings_.iterations;
  const auto sums =
      totals_.sum({bad, cpu / times, density / times / n, union_density / times / n, coded / times / n,
                   state_.report().residual_norm / n, ratio / times / n, received / times / n});
  m.wrong = static_cast<std::uint64_t>(sums[0]);
  m.cpu_seconds = sums[1];
  m.density = sums[2], m.union_density = sums[3], m.coded_bytes = sums[4], m.residual_norm = sums[5];
  m.coded_ratio = sums[6], m.result_bytes = sums[7];
  return m;
}

}  // namespace

Measurement run_compressed(nzcl::Communicator& communicator, const Settings& settings,
                           const Problem& problem) {
  return CompressedBench(communicator, settings, problem).run();
}

}  // namespace perf::allreduce
