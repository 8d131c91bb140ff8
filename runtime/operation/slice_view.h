// One slice of a tensor together with the set of those of its blocks that are present.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/base/bitmap.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::engine {

/// The blocks of a slice that a rank contributes, or that a result has: an index set over the slice's blocks.
/// The bytes of these blocks, one behind the other in ascending order, are the slice's *stream*. A view: it
/// owns nothing, and layout and bitmap must outlive it.
///
/// Whoever walks a slice goes through this class and RunWalk, so this is the place to add other index sets.
class SliceView {
 public:
  SliceView() = default;
  SliceView(const SliceLayout& layout, std::uint64_t slice, std::span<const std::uint64_t> bits)
      : layout_(&layout), slice_(slice), blocks_(layout.blocks_of(slice)), bits_(bits) {}

  /// The same slice with another set of blocks.
  SliceView with(std::span<const std::uint64_t> bits) const {
    SliceView view = *this;
    view.bits_ = bits;
    return view;
  }

  const SliceLayout& layout() const { return *layout_; }
  std::uint64_t slice() const { return slice_; }
  /// Number of blocks in the slice, present or not. Block numbers below count within the slice.
  std::uint64_t blocks() const { return blocks_; }
  std::span<const std::uint64_t> bits() const { return bits_; }

  /// Returns true if no bit is set behind the last block. A bitmap that a peer sent must not be walked before
  /// this has been checked.
  bool well_formed() const { return blocks_ % 64 == 0 || (bits_.back() & ~low_bits(blocks_ % 64)) == 0; }

  /// Returns true if all blocks are present.
  bool whole() const { return all_set(bits_, blocks_); }
  /// Number of present blocks, and number of runs of consecutive present blocks.
  std::uint64_t count() const { return count_bits(bits_); }
  std::uint64_t runs() const { return count_runs(bits_, blocks_); }
  /// Returns the first present block from `block` on, or blocks() if there is none.
  std::uint64_t next(std::uint64_t block) const { return next_set(bits_, block, blocks_); }
  /// Returns the first absent block from `block` on, or blocks() if there is none.
  std::uint64_t next_absent(std::uint64_t block) const { return next_clear(bits_, block, blocks_); }

  /// Offset of a block in the tensor or the slice's chunk, in bytes.
  std::uint64_t tensor_offset(std::uint64_t block) const { return layout_->offset_of(slice_, block); }
  /// Bytes of `n` blocks from `block` on. Only a chunk's last block may be shorter than the others.
  std::uint64_t bytes(std::uint64_t block, std::uint64_t n) const {
    return layout_->bytes_of_blocks(slice_, block, n);
  }
  /// Bytes of all present blocks.
  std::uint64_t stream_bytes() const {
    const std::uint64_t whole = count() * layout_->block_bytes();
    const bool cut = blocks_ > 0 && test_bit(bits_, blocks_ - 1);  // the last one may be shorter
    return cut ? whole - layout_->block_bytes() + bytes(blocks_ - 1, 1) : whole;
  }

 private:
  const SliceLayout* layout_ = nullptr;
  std::uint64_t slice_ = 0, blocks_ = 0;
  std::span<const std::uint64_t> bits_;
};

/// Copies `count` bits from position `from_bit` of one bitmap to position `to_bit` of another one. The
/// bitmaps must not overlap. Other bits of `to` keep their values.
inline void copy_bits(std::span<std::uint64_t> to, std::uint64_t to_bit, std::span<const std::uint64_t> from,
                      std::uint64_t from_bit, std::uint64_t count) {
  while (count > 0) {
    const std::uint64_t to_shift = to_bit % 64, from_shift = from_bit % 64;
    const std::uint64_t n = std::min({count, 64 - to_shift, 64 - from_shift});
    const std::uint64_t mask = low_bits(n);
    const std::uint64_t bits = from[from_bit / 64] >> from_shift & mask;
    to[to_bit / 64] = (to[to_bit / 64] & ~(mask << to_shift)) | bits << to_shift;
    to_bit += n, from_bit += n, count -= n;
  }
}

}  // namespace nzcl::engine
