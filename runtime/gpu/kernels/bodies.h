// The kernels, written once. A thin shim (gpu_shim.cuh, cpu_shim.h) says what a block of threads, a warp and
// a lane are, so that the same loops are a program for CUDA and one for the CPU.
//
// A kernel runs one block of threads for each slice. `Block` has
//   index()            the number of the slice
//   each(n, f)         f(i) for i below n, spread over all threads; then a barrier
//   each_warp(f)       f(warp) once for each warp; then a barrier
//   words()            kMostSliceWords words that the threads share
//   set(word, bits)    sets bits of one of them, atomically
//   raise(flag, value) what all threads have written becomes visible to the host, and then the flag does
// and a warp has index(), count(), and
//   any(f)             whether f(lane) is true for any lane; the same answer for all
//   sum(f)             the sum of f(lane) over all lanes
//   each_lane(f)       f(lane) for each lane
//   once(f)            f() by one lane
#pragma once

#include "runtime/gpu/kernels/jobs.h"

#if defined(__CUDA__)
#define NZCL_ON_GPU __attribute__((device))
#else
#define NZCL_ON_GPU
#endif

namespace nzcl::gpu {

inline constexpr unsigned kLanes = 32;
/// A warp works on so many bytes of a block at a time, so that all warps have work where blocks are large.
inline constexpr std::uint64_t kPieceBytes = 4096;

/// Sixteen bytes that are read and written at once.
struct Unit16 {
  using Pair [[gnu::vector_size(16), gnu::may_alias]] = std::uint64_t;
  Pair pair;
};

template <typename Unit>
NZCL_ON_GPU inline bool any_bit(Unit unit) {
  return unit != 0;
}
NZCL_ON_GPU inline bool any_bit(Unit16 unit) { return (unit.pair[0] | unit.pair[1]) != 0; }

// Memory is a caller's, of any type, so it is read and written as bytes of a known alignment.
template <typename Unit>
NZCL_ON_GPU inline Unit load(const std::byte* at) {
  Unit unit;
  __builtin_memcpy(&unit, __builtin_assume_aligned(at, sizeof(Unit)), sizeof(Unit));
  return unit;
}
template <typename Unit>
NZCL_ON_GPU inline void store(std::byte* at, Unit unit) {
  __builtin_memcpy(__builtin_assume_aligned(at, sizeof(Unit)), &unit, sizeof(Unit));
}
template <>
NZCL_ON_GPU inline void store(std::byte* at, Unit16 unit) {
  *reinterpret_cast<Unit16::Pair*>(at) = unit.pair;  // the compiler would make two writes of a copy
}

/// The pieces of a slice's blocks. A piece has whole units, because blocks and tensors have.
class Pieces {
 public:
  NZCL_ON_GPU Pieces(const Shape& shape, std::uint64_t slice)
      : shape_(shape),
        first_block_(slice * shape.slice_blocks),
        blocks_(least(shape.slice_blocks, shape.blocks() - first_block_)),
        in_block_((shape.block_bytes + kPieceBytes - 1) / kPieceBytes) {}

  NZCL_ON_GPU std::uint64_t first_block() const { return first_block_; }
  NZCL_ON_GPU std::uint64_t blocks() const { return blocks_; }
  NZCL_ON_GPU std::uint64_t count() const { return blocks_ * in_block_; }
  /// The piece's block, counted within the slice.
  NZCL_ON_GPU std::uint64_t block(std::uint64_t piece) const { return piece / in_block_; }
  /// Where the piece begins in its block, and how many bytes it has.
  NZCL_ON_GPU std::uint64_t offset(std::uint64_t piece) const { return piece % in_block_ * kPieceBytes; }
  NZCL_ON_GPU std::uint64_t bytes(std::uint64_t piece) const {
    const std::uint64_t begin = (first_block_ + block(piece)) * shape_.block_bytes;
    const std::uint64_t end = least(begin + shape_.block_bytes, shape_.bytes);
    const std::uint64_t at = begin + offset(piece);
    return at < end ? least(kPieceBytes, end - at) : 0;
  }
  /// Where the piece lies in the tensor.
  NZCL_ON_GPU std::uint64_t position(std::uint64_t piece) const {
    return (first_block_ + block(piece)) * shape_.block_bytes + offset(piece);
  }

 private:
  NZCL_ON_GPU static std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }
  Shape shape_;
  std::uint64_t first_block_, blocks_, in_block_;
};

template <typename Unit, typename Warp>
NZCL_ON_GPU inline void copy_piece(Warp& warp, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  warp.each_lane([&](unsigned lane) {
    for (std::uint64_t at = lane * sizeof(Unit); at < bytes; at += kLanes * sizeof(Unit))
      store<Unit>(to + at, load<Unit>(from + at));
  });
}

template <typename Unit, typename Block>
NZCL_ON_GPU inline void scan_slice(Block& block, const PackJob& job, const Pieces& pieces) {
  block.each_warp([&](auto& warp) {
    for (std::uint64_t piece = warp.index(); piece < pieces.count(); piece += warp.count()) {
      const std::byte* const from = job.tensor + pieces.position(piece);
      const std::uint64_t bytes = pieces.bytes(piece);
      const bool any = warp.any([&](unsigned lane) {
        bool found = false;
        for (std::uint64_t at = lane * sizeof(Unit); at < bytes; at += kLanes * sizeof(Unit))
          found |= any_bit(load<Unit>(from + at));
        return found;
      });
      const std::uint64_t b = pieces.block(piece);
      if (any) warp.once([&] { block.set(b / 64, std::uint64_t{1} << b % 64); });
    }
  });
}

template <typename Unit, typename Block>
NZCL_ON_GPU inline void pack_slice(Block& block, const PackJob& job) {
  const Pieces pieces(job.shape, block.index());
  std::uint64_t* const bits = job.bits + block.index() * job.shape.words_per_slice();
  const std::uint64_t words = (pieces.blocks() + 63) / 64;
  std::uint64_t* const shared = block.words();
  block.each(words, [&](std::uint64_t w) { shared[w] = job.known ? bits[w] : 0; });
  if (!job.known) scan_slice<Unit>(block, job, pieces);
  std::byte* const packed = job.packed + pieces.first_block() * job.shape.block_bytes;
  block.each_warp([&](auto& warp) {
    for (std::uint64_t piece = warp.index(); piece < pieces.count(); piece += warp.count()) {
      const std::uint64_t b = pieces.block(piece), word = b / 64, bit = std::uint64_t{1} << b % 64;
      if ((shared[word] & bit) == 0) continue;
      const std::uint64_t before = warp.sum([&](unsigned lane) {
        std::uint64_t count = 0;
        for (std::uint64_t w = lane; w < word; w += kLanes)
          count += static_cast<std::uint64_t>(__builtin_popcountll(shared[w]));
        return lane == 0 ? count + static_cast<std::uint64_t>(__builtin_popcountll(shared[word] & (bit - 1)))
                         : count;
      });
      copy_piece<Unit>(warp, packed + before * job.shape.block_bytes + pieces.offset(piece),
                       job.tensor + pieces.position(piece), pieces.bytes(piece));
    }
  });
  if (!job.known) block.each(words, [&](std::uint64_t w) { bits[w] = shared[w]; });
  block.raise(job.flags + block.index(), job.value);
}

template <typename Unit, typename Block>
NZCL_ON_GPU inline void place_slice(Block& block, const PlaceJob& job) {
  const Pieces pieces(job.shape, block.index());
  const std::uint64_t* const bits = job.bits + block.index() * job.shape.words_per_slice();
  block.each_warp([&](auto& warp) {
    for (std::uint64_t piece = warp.index(); piece < pieces.count(); piece += warp.count()) {
      const std::uint64_t b = pieces.block(piece), at = pieces.position(piece), bytes = pieces.bytes(piece);
      if ((bits[b / 64] >> b % 64 & 1) != 0) {
        copy_piece<Unit>(warp, job.tensor + at, job.staged + at, bytes);
      } else if (job.fill) {
        warp.each_lane([&](unsigned lane) {
          for (std::uint64_t i = lane * sizeof(Unit); i < bytes; i += kLanes * sizeof(Unit))
            store<Unit>(job.tensor + at + i, Unit{});
        });
      }
    }
  });
}

}  // namespace nzcl::gpu
