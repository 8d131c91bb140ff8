// Copies with stores that go past the caches.
#pragma once

#include <cstddef>

namespace nzcl {

/// Copies `bytes` bytes that may lie anywhere and do not overlap. Whole lines of the destination are written
/// to memory and stay in no cache (non-temporal stores), where the CPU has such stores. All bytes are visible
/// to other threads before whatever this thread writes afterwards, as after memcpy(). The caller has
/// prefetched the first kPrefetchBytes of the source if it is in no cache.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

}  // namespace nzcl
