// How fast this machine reads, copies and adds when nothing else is asked of it: what nzcl is held against.
#pragma once

#include <cstddef>

namespace perf {

/// For a buffer that is to be out of cache: twice the last level's, 32 MiB at least; whole pages. Where so
/// many processes of a host use theirs at the same time: each one's share.
std::size_t bytes_out_of_cache(int processes = 1);

/// Reads `bytes` zeros by the C library's search for a byte, which is not there.
void plain_read(const std::byte* data, std::size_t bytes);
/// memcpy.
void plain_copy(std::byte* to, const std::byte* from, std::size_t bytes);
/// memcpy piece by piece, the next piece prefetched: which of the two is faster depends on the CPU.
void prefetching_copy(std::byte* to, const std::byte* from, std::size_t bytes);
/// to[i] += from[i]: the loop that the compiler vectorises for this CPU.
void plain_add(float* to, const float* from, std::size_t count);

}  // namespace perf
