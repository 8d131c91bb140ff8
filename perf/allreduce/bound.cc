#include "perf/allreduce/bound.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace perf::allreduce {
namespace {

constexpr std::size_t kBytes = 32 << 20;  // beyond the last level's cache of most machines

/// The mean, not the best: ranks that share a core take turns, and each one's best would count it several
/// times.
template <typename Work>
double rate(Work work) {
  constexpr int kTimes = 6;
  work();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kBytes) * kTimes / took.count();
}

}  // namespace

MemorySpeed measure_memory() {
  std::vector<float> a(kBytes / sizeof(float), 0.0f), b(a.size(), 0.0f), c(a.size(), 0.0f);
  MemorySpeed speed;
  // The C library's search for a byte that is not there reads as fast as the machine can.
  speed.read = rate([&] {
    if (std::memchr(a.data(), 1, kBytes) != nullptr) std::abort();
  });
  speed.copy = rate([&] { std::memcpy(b.data(), a.data(), kBytes); });
  speed.add = rate([&] {
    float* __restrict out = c.data(), * __restrict in = b.data();
    for (std::size_t i = 0; i < a.size(); ++i) out[i] += in[i];
  });
  return speed;
}

double wire_bound(const Load& l, double bytes_per_second) {
  const double n = l.ranks, d = l.density, u = l.union_density;
  double share = (d + u) * (n - 1) / n;
  if (l.aggregators > 0) share = std::max(d, u) * std::max(1.0, n / l.aggregators);
  return share * l.bytes / bytes_per_second;
}

double memory_bound(const Load& l, const MemorySpeed& speed) {
  const double n = l.ranks, d = l.density, u = l.union_density;
  const double others = l.aggregators > 0 ? n : n - 1;  // ranks that an aggregator reaches through memory
  const double read = l.scans ? n * l.bytes : 0;
  const double copied = (others * d + others * u) * l.bytes;
  const double added = n * d * l.bytes;
  const double zeroed = l.in_place ? 0 : n * (1 - u) * l.bytes;
  return read / speed.read + (copied + zeroed / 2) / speed.copy + added / speed.add;
}

}  // namespace perf::allreduce
