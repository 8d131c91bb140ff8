#include "perf/allreduce/bound.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "perf/plain_loops.h"

namespace perf::allreduce {
namespace {

/// Times `work` until all ranks have done it. Ranks that share a core take turns, and with their own times
/// the core would count twice.
template <typename Work>
double rate(std::size_t bytes, const std::function<void()>& barrier, Work work) {
  constexpr int kTimes = 6;
  work();
  barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) work();
  barrier();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(bytes) * kTimes / took.count();
}

}  // namespace

MemorySpeed measure_memory(int ranks, const std::function<void()>& barrier) {
  const std::size_t bytes = bytes_out_of_cache(ranks);
  std::vector<float> a(bytes / sizeof(float), 0.0f), b(a.size(), 0.0f), c(a.size(), 0.0f);
  auto* const from = reinterpret_cast<std::byte*>(a.data());
  auto* const to = reinterpret_cast<std::byte*>(b.data());
  MemorySpeed speed;
  speed.read = rate(bytes, barrier, [&] { plain_read(from, bytes); });
  speed.copy = std::max(rate(bytes, barrier, [&] { plain_copy(to, from, bytes); }),
                        rate(bytes, barrier, [&] { prefetching_copy(to, from, bytes); }));
  speed.add = rate(bytes, barrier, [&] { plain_add(c.data(), b.data(), c.size()); });
  return speed;
}

Shares shares_of(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::allreduce:
      return {others, others};
    case Collective::broadcast:  // the root
      return {ranks > 1 ? 1.0 : 0.0, 0};
    case Collective::reduce:  // ranks that are not the root have a share of the sum, which they send to it
      if (ranks <= 2) return {ranks > 1 ? 1.0 : 0.0, 0};
      return {static_cast<double>(ranks - 2) / (ranks - 1), 1.0 / (ranks - 1)};
    case Collective::reduce_scatter:
    case Collective::allgather:
      return {others, 0};
  }
  return {};
}

double wire_bound(const Load& l, double bytes_per_second) {
  const double n = l.ranks, d = l.density, u = l.union_density;
  const Shares shares = shares_of(l.collective, l.ranks);
  double share = d * shares.own + u * shares.sums;
  if (l.host_ranks > 1) {  // what the ranks of a host have together is sent once, and so is the sum
    const double others = 1 - l.host_ranks / n;
    share = (l.host_density + u) * others;
  }
  if (l.aggregators > 0) share = std::max(d, u) * std::max(1.0, n / l.aggregators);
  return share * l.bytes / bytes_per_second;
}

double entropy_bytes(const Load& l) {
  const auto of = [&](double density) {
    const auto bits = [](double p) { return p > 0 ? -p * std::log2(p) : 0.0; };
    return density * l.bytes + l.blocks * (bits(density) + bits(1 - density)) / 8;
  };
  if (l.aggregators > 0) return of(l.density);
  const Shares shares = shares_of(l.collective, l.ranks);
  return of(l.density) * shares.own + of(l.union_density) * shares.sums;
}

double memory_bound(const Load& l, const MemorySpeed& speed) {
  const double n = l.ranks, d = l.density, u = l.union_density;
  const double others = l.aggregators > 0 ? n : n - 1;  // ranks that are not in the aggregator's process
  const double read = l.scans ? n * l.bytes : 0;
  const double copied = (others * d + others * u) * l.bytes;
  const double added = n * d * l.bytes;
  const double zeroed = l.in_place ? 0 : n * (1 - u) * l.bytes;
  const double kept = l.compresses ? n * l.bytes : 0;
  return read / speed.read + kept / speed.add + (copied + zeroed / 2) / speed.copy + added / speed.add;
}

}  // namespace perf::allreduce
