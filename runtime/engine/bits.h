// Bitmap work that knows about slices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/base/bitmap.h"
#include "runtime/engine/slice_layout.h"

namespace nzcl::engine {

/// Copies `count` bits between positions of two bitmaps that do not overlap. Other bits of `to` stay.
inline void copy_bits(std::span<std::uint64_t> to, std::uint64_t to_bit, std::span<const std::uint64_t> from,
                      std::uint64_t from_bit, std::uint64_t count) {
  while (count > 0) {
    const std::uint64_t to_shift = to_bit % 64, from_shift = from_bit % 64;
    const std::uint64_t n = std::min({count, 64 - to_shift, 64 - from_shift});
    const std::uint64_t mask = (n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1);
    const std::uint64_t bits = from[from_bit / 64] >> from_shift & mask;
    to[to_bit / 64] = (to[to_bit / 64] & ~(mask << to_shift)) | bits << to_shift;
    to_bit += n, from_bit += n, count -= n;
  }
}

/// Bytes of a slice's set blocks: all are whole but perhaps the tensor's last.
inline std::uint64_t stream_bytes(const SliceLayout& layout, std::uint64_t slice,
                                  std::span<const std::uint64_t> bits) {
  const std::uint64_t blocks = layout.blocks_of(slice);
  std::uint64_t bytes = count_bits(bits) * layout.block_bytes();
  if (blocks > 0 && slice + 1 == layout.slices() && test_bit(bits, blocks - 1)) {
    bytes -= layout.block_bytes() - layout.bytes_of_blocks(slice, blocks - 1, 1);
  }
  return bytes;
}

/// A position in a slice's stream of set blocks: always at a set block, or at the end.
struct StreamCursor {
  std::uint64_t block = 0;   // within the slice
  std::uint64_t offset = 0;  // bytes into the block

  /// Ahead, within a run of set blocks.
  void advance(std::uint64_t bytes, std::uint64_t block_bytes) {
    offset += bytes;
    block += offset / block_bytes;
    offset %= block_bytes;
  }
};

}  // namespace nzcl::engine
