// Finds the blocks of a buffer that are not all zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl {

inline constexpr int kMaxScanStreams = 4;

/// Bit i of `bitmap` becomes 1 if block i of `data` has any non-zero byte, else 0. So -0.0 counts as
/// non-zero: only a block whose bytes are all zero can be left out of a sum, a minimum or a maximum without
/// changing a bit of the result.
///
/// Blocks are `block_bytes` (>= 1) long, the last one may be shorter. `bitmap` has at least words_for(number
/// of blocks) words, and exactly these are written, unused bits as 0. No alignment is needed. Reads nothing
/// outside [data, data + bytes), and little of a block beyond its first non-zero cache line.
///
/// Buffers of blocks that have a cache line or more are read as `streams` parts in turn (1 to
/// kMaxScanStreams) if the parts are long enough. This changes only the speed, in a way that depends on the
/// CPU: fastest_scan_streams() finds the best number.
void scan_blocks(const std::byte* data, std::uint64_t bytes, std::uint64_t block_bytes,
                 std::span<std::uint64_t> bitmap, int streams) noexcept;

}  // namespace nzcl
