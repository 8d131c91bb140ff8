// Times a kernel and a plain loop in turn, so that both run under the same conditions.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace perf::kernels {

/// Calls `kernel` and `plain` alternately. The time of the row is the kernel's. Its counters are the bytes
/// per second of the kernel, those of the plain loop (`plain`), and the `ratio` of the two. `kernel_bytes`
/// and `plain_bytes` say how many bytes one call of each moves.
template <class Kernel, class Plain>
void beside(benchmark::State& state, std::uint64_t kernel_bytes, Kernel kernel, std::uint64_t plain_bytes,
            Plain plain) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  double kernel_s = 0, plain_s = 0;
  for (auto _ : state) {
    const auto begin = Clock::now();
    kernel();
    const auto middle = Clock::now();
    plain();
    const auto end = Clock::now();
    state.SetIterationTime(Seconds(middle - begin).count());
    kernel_s += Seconds(middle - begin).count();
    plain_s += Seconds(end - middle).count();
  }
  const auto runs = static_cast<double>(state.iterations());
  const double kernel_rate = static_cast<double>(kernel_bytes) * runs / kernel_s;
  const double plain_rate = static_cast<double>(plain_bytes) * runs / plain_s;
  state.SetBytesProcessed(static_cast<std::int64_t>(kernel_bytes) * state.iterations());
  state.counters["plain"] =
      benchmark::Counter(plain_rate, benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
  state.counters["ratio"] = kernel_rate / plain_rate;
}

/// These have one row per instruction set, named "what/target".
void register_scans(const std::string& target_name, std::int64_t target);
void register_reductions(const std::string& target_name, std::int64_t target);
void register_elements(const std::string& target_name, std::int64_t target);
void register_element_sums(const std::string& target_name, std::int64_t target);
void register_units(const std::string& target_name, std::int64_t target);
void register_compression(const std::string& target_name, std::int64_t target);
void register_indices(const std::string& target_name, std::int64_t target);
/// These are not written for an instruction set; a row is named "what".
void register_copies();

}  // namespace perf::kernels
