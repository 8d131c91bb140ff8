// Plain loops that show how fast this machine reads, copies and adds. nzcl's speed is compared with theirs.
#pragma once

#include <cstddef>

namespace perf {

/// The size of a buffer that no cache holds: twice the last level's cache, at least 32 MiB, in whole pages.
/// If several processes of a host use such buffers at the same time, this is the share of each.
std::size_t bytes_out_of_cache(int processes = 1);

/// Reads `bytes` zeros: the C library searches them for a byte that is not there.
void plain_read(const std::byte* data, std::size_t bytes);
/// memcpy.
void plain_copy(std::byte* to, const std::byte* from, std::size_t bytes);
/// Copies piece by piece and prefetches the next piece. Whether this or memcpy is faster depends on the CPU.
void prefetching_copy(std::byte* to, const std::byte* from, std::size_t bytes);
/// to[i] += from[i]: the loop that the compiler vectorises for this CPU.
void plain_add(float* to, const float* from, std::size_t count);

}  // namespace perf
