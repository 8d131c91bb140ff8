#include "runtime/channel/staging_way.h"

#include <algorithm>
#include <chrono>

#include "runtime/base/cold_memory.h"

namespace nzcl::engine {

double read_ns_per_kib(const std::byte* sample, std::uint64_t bytes) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  // The reads do not depend on each other, like those of a sum.
  for (std::uint64_t i = 0; i < bytes; i += kCacheLine)
    static_cast<void>(*const_cast<const volatile std::byte*>(sample + i));
  const std::chrono::duration<double, std::nano> time = Clock::now() - begin;
  return time.count() * 1024 / static_cast<double>(bytes);
}

void StagingWay::add(bool streamed, double ns_per_kib) {
  double& mean = read_ns_[streamed ? 1 : 0];
  if (mean == 0) mean = ns_per_kib;
  mean += (std::min(ns_per_kib, kMostOfStagingMean * mean) - mean) / kStagingMeanSamples;
  choose();
}

void StagingWay::choose() {
  const double cached = read_ns_[0], streamed = read_ns_[1];
  if (cached == 0 || streamed == 0) return;
  if (cached > kStreamedFrom * streamed) streamed_ = true;
  if (cached < kCachedFrom * streamed) streamed_ = false;
}

}  // namespace nzcl::engine
