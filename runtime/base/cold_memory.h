// Copies and clears memory that is in no cache, and prefetches the next lines meanwhile. The prefetchers of a
// CPU foresee reads along a run, but not where the next run begins. They hardly foresee what string
// instructions write.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace nzcl {

/// How far ahead lines are prefetched: far enough that they have arrived when they are needed, and not more
/// than a core can request at a time.
inline constexpr std::size_t kPrefetchBytes = 1024;
inline constexpr std::size_t kCacheLine = 64;

/// Prefetches the first kPrefetchBytes of a run. These functions are always inlined, because gcc 12 drops
/// calls of a function that does nothing but prefetch unless it inlines them early, which it does not do from
/// code for another instruction set.
[[gnu::always_inline]] inline void prefetch_to_read(const std::byte* run, std::size_t bytes) {
  const std::size_t end = std::min(bytes, kPrefetchBytes);
  for (std::size_t i = 0; i < end; i += kCacheLine) __builtin_prefetch(run + i, 0);
}
[[gnu::always_inline]] inline void prefetch_to_write(std::byte* run, std::size_t bytes) {
  const std::size_t end = std::min(bytes, kPrefetchBytes);
  for (std::size_t i = 0; i < end; i += kCacheLine) __builtin_prefetch(run + i, 1);
}

/// memcpy() for runs where the source or the destination is in no cache. The caller has prefetched the first
/// kPrefetchBytes. The run is copied piece by piece, because glibc's memcpy() uses string instructions for
/// long runs on many CPUs, and these read little in advance.
inline void copy_cold(std::byte* to, const std::byte* from, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, kPrefetchBytes);
    const std::size_t rest = bytes - piece;
    prefetch_to_write(to + piece, rest);
    prefetch_to_read(from + piece, rest);
    std::memcpy(to, from, piece);
    to += piece, from += piece, bytes = rest;
  }
}

/// memset() to zero in the same way as copy_cold().
inline void zero_cold(std::byte* run, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, kPrefetchBytes);
    prefetch_to_write(run + piece, bytes - piece);
    std::memset(run, 0, piece);
    run += piece, bytes -= piece;
  }
}

}  // namespace nzcl
