#include "runtime/kernels/scan_streams.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>

#include "runtime/kernels/scan.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace nzcl {
namespace {

using Seconds = std::chrono::duration<double>;

// The slices are as small as those of a large tensor on one host. Several are scanned, because the time
// between two slices counts too.
constexpr std::size_t kSlice = 256 << 10, kSlices = 16, kBytes = kSlices * kSlice;
constexpr std::uint64_t kBlock = 1024;
// Each number of streams is measured this many times, and its best time counts, because other programs slow
// some of the rounds down.
constexpr int kRounds = 5;
// More streams are chosen only if they take less than this share of the time of fewer streams.
constexpr double kWorthwhile = 0.95;

#if defined(__aarch64__)
/// Writes all lines back to memory, out of every cache. There are CPUs with lines of more than 64 bytes, but
/// none of those that run Linux has smaller ones.
void write_back(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kLeastLine = 64;
  for (std::size_t i = 0; i < bytes; i += kLeastLine) asm volatile("dc civac, %0" ::"r"(data + i) : "memory");
  asm volatile("dsb ish" ::: "memory");
}
#endif

/// Writes zeros past the caches, so that the scan has to read memory. On CPUs that are not known here it
/// scans what is in their cache, where one stream is as fast as several and is therefore chosen.
void make_cold_zeros(std::byte* data, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(data + i), _mm_setzero_si128());
  _mm_sfence();
#else
  std::fill_n(data, bytes, std::byte{0});
#if defined(__aarch64__)
  write_back(data, bytes);
#endif
#endif
}

double scan_time(std::byte* data, int streams) {
  std::array<std::uint64_t, kSlice / kBlock / 64> bitmap;
  make_cold_zeros(data, kBytes);
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t at = 0; at < kBytes; at += kSlice) scan_blocks(data + at, kSlice, kBlock, bitmap, streams);
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

int measure() {
  const std::unique_ptr<std::byte, decltype(&std::free)> data(
      static_cast<std::byte*>(std::aligned_alloc(4096, kBytes)), &std::free);
  if (!data) throw std::bad_alloc();
  constexpr std::array kChoices{1, 2, kMaxScanStreams};
  std::array<double, kChoices.size()> best{};
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kChoices.size(); ++i) {
      const double time = scan_time(data.get(), kChoices[i]);
      best[i] = round == 0 ? time : std::min(best[i], time);
    }
  }
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < kChoices.size(); ++i) {
    if (best[i] < kWorthwhile * best[chosen]) chosen = i;
  }
  return kChoices[chosen];
}

}  // namespace

int fastest_scan_streams() {
  static const int streams = measure();
  return streams;
}

}  // namespace nzcl
