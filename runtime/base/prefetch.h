// Asks for memory that hardware can't foresee: the begin of the next run of non-zero blocks, while this one
// is copied.
#pragma once

#include <algorithm>
#include <cstddef>

namespace nzcl {

/// Enough for hardware to have noticed where the run goes, and no more than a core can have under way.
inline constexpr std::size_t kPrefetchBytes = 1024;
inline constexpr std::size_t kCacheLine = 64;

inline void prefetch_to_read(const std::byte* run, std::size_t bytes) {
  const std::size_t end = std::min(bytes, kPrefetchBytes);
  for (std::size_t i = 0; i < end; i += kCacheLine) __builtin_prefetch(run + i, 0);
}
inline void prefetch_to_write(std::byte* run, std::size_t bytes) {
  const std::size_t end = std::min(bytes, kPrefetchBytes);
  for (std::size_t i = 0; i < end; i += kCacheLine) __builtin_prefetch(run + i, 1);
}

}  // namespace nzcl
