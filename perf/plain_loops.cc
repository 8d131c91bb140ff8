#include "perf/plain_loops.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/base/cold_memory.h"

namespace perf {

std::size_t bytes_out_of_cache(int processes) {
  const auto cache = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE)));
  return std::max<std::size_t>(32 << 20, 2 * cache / static_cast<std::size_t>(processes)) / 4096 * 4096;
}

void plain_read(const std::byte* data, std::size_t bytes) {
  if (std::memchr(data, 1, bytes) != nullptr) std::abort();
  asm volatile("" ::: "memory");  // otherwise the compiler reads once for several calls
}

void plain_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  asm volatile("" ::: "memory");
}

void prefetching_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  nzcl::copy_cold(to, from, bytes);
  asm volatile("" ::: "memory");
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)  // the loader chooses the clone before a sanitizer is ready
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void plain_add(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace perf
