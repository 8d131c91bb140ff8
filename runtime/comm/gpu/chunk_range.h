// Which part of a tensor one side of an operation has, and how it is cut.
#pragma once

#include <cstdint>

#include "runtime/gpu/kernels/jobs.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::comm {

/// Some chunks of a tensor, which lie one behind the other in a piece of memory. A tensor without chunks is
/// one chunk. The layout must outlive the range.
class ChunkRange {
 public:
  ChunkRange(const engine::SliceLayout& layout, std::uint32_t first, std::uint32_t count)
      : layout_(layout), first_(first), end_(first + count) {}

  bool empty() const { return first_ == end_; }
  std::uint32_t first() const { return first_; }
  std::uint32_t end() const { return end_; }
  bool has_chunk(std::uint32_t chunk) const { return first_ <= chunk && chunk < end_; }
  std::uint64_t bytes() const { return offset_of(end_); }
  /// Where a chunk begins in that memory, in bytes.
  std::uint64_t offset_of(std::uint32_t chunk) const {
    return (layout_.chunk_begin(chunk) - layout_.chunk_begin(first_)) * layout_.element_bytes();
  }

  std::uint64_t first_slice() const { return layout_.first_slice_of(first_); }
  std::uint64_t slices() const { return layout_.first_slice_of(end_) - first_slice(); }
  bool has(std::uint64_t slice) const { return slice - first_slice() < slices(); }
  /// The number of a slice's first block among the blocks of all these chunks.
  std::uint64_t first_block(std::uint64_t slice) const {
    return layout_.blocks_before(layout_.chunk_of(slice)) - layout_.blocks_before(first_) +
           layout_.first_block(slice);
  }

  /// How a chunk is cut into blocks, and into slices that are one block each.
  gpu::Shape blocks_of(std::uint32_t chunk) const {
    return {.bytes = layout_.chunk_elements(chunk) * layout_.element_bytes(),
            .block_bytes = layout_.block_bytes(),
            .slice_blocks = layout_.slice_blocks()};
  }
  gpu::Shape whole_slices_of(std::uint32_t chunk) const {
    return {.bytes = layout_.chunk_elements(chunk) * layout_.element_bytes(),
            .block_bytes = layout_.slice_bytes(),
            .slice_blocks = 1};
  }

 private:
  const engine::SliceLayout& layout_;
  const std::uint32_t first_, end_;
};

}  // namespace nzcl::comm
