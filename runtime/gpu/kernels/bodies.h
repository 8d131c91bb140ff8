// The kernels that pack, place and copy, written once; step_bodies.h has those of compressors. A thin shim
// (gpu_shim.cuh, cpu_shim.h) says what a block of threads, a warp and a lane are, so that the same loops are
// a program for CUDA and one for the CPU.
//
// A kernel runs one block of threads for each slice, or for each share of a list. `Block` has
//   index()            the number of the slice or share
//   each(n, f)         f(i) for i below n, spread over all threads; then a barrier
//   each_warp(f)       f(warp) once for each warp; then a barrier
//   words()            shared_bytes() of memory that the threads share
//   set(word, bits)    sets bits of one of them, atomically
//   add(at, n)         adds to one of them, atomically
//   add_everywhere(at, n)  the same with memory that all blocks use
//   raise(flag, value) what all threads have written becomes visible to the host, and then the flag does
// and a warp has index(), count(), and
//   any<N>(f)          the lowest N bits of f(lane), or-ed over all lanes; the same answer for all
//   ballot<N>(to, f)   to[i] gets bit i of f(lane) of all lanes, the first one's lowest; the same for all
//   max(f)             the largest f(lane); the same for all
//   each_lane(f)       f(lane) for each lane
//   once(f)            f() by one lane
#pragma once

#include "runtime/gpu/kernels/jobs.h"

#if defined(__CUDA__)
#define NZCL_ON_GPU __attribute__((device, always_inline))
// A large lambda, whose variables stay in registers.
#define NZCL_INLINE __attribute__((always_inline))
// What such a loop counts through stays in registers.
#define NZCL_UNROLL _Pragma("unroll")
#else
#define NZCL_ON_GPU
#define NZCL_INLINE
#define NZCL_UNROLL
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

/// A part of a block, which one warp works on.
struct Piece {
  std::uint64_t position = 0;  // in the tensor
  std::uint32_t block = 0;     // counted within the slice
  std::uint32_t offset = 0;    // in its block
  std::uint32_t bytes = 0;     // whole units, because blocks and tensors have whole ones
};

/// The pieces of a slice's blocks.
class Pieces {
 public:
  NZCL_ON_GPU Pieces(const Shape& shape, std::uint64_t slice)
      : bytes_(shape.bytes),
        block_bytes_(shape.block_bytes),
        first_block_(slice * shape.slice_blocks),
        blocks_(static_cast<std::uint32_t>(least(shape.slice_blocks, shape.blocks() - first_block_))),
        in_block_(static_cast<std::uint32_t>((shape.block_bytes + kPieceBytes - 1) / kPieceBytes)) {}

  NZCL_ON_GPU std::uint64_t first_block() const { return first_block_; }
  NZCL_ON_GPU std::uint32_t blocks() const { return blocks_; }
  NZCL_ON_GPU std::uint32_t count() const { return blocks_ * in_block_; }
  /// A piece beyond the last one has no bytes.
  NZCL_ON_GPU Piece at(std::uint32_t piece) const {
    // A division takes as long as reading a block, and most blocks are of one piece.
    const std::uint32_t block = in_block_ == 1 ? piece : piece / in_block_;
    const std::uint64_t offset = (piece - block * in_block_) * kPieceBytes;
    const std::uint64_t begin = (first_block_ + block) * block_bytes_;
    const std::uint64_t end = least(begin + block_bytes_, bytes_), at = begin + offset;
    return {
        .position = at,
        .block = block,
        .offset = static_cast<std::uint32_t>(offset),
        .bytes = static_cast<std::uint32_t>(block < blocks_ && at < end ? least(kPieceBytes, end - at) : 0)};
  }

 private:
  NZCL_ON_GPU static std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }
  std::uint64_t bytes_, block_bytes_, first_block_;
  std::uint32_t blocks_, in_block_;
};

/// Memory answers late, so every lane asks for several units before it looks at the first.
template <typename Unit, typename Warp>
NZCL_ON_GPU inline void copy_piece(Warp& warp, std::byte* to, const std::byte* from, std::uint32_t bytes) {
  constexpr std::uint32_t kRow = kLanes * sizeof(Unit);
  warp.each_lane([&](unsigned lane) {
    std::uint32_t at = lane * static_cast<std::uint32_t>(sizeof(Unit));
    for (; at + 3 * kRow < bytes; at += 4 * kRow) {
      const Unit a = load<Unit>(from + at), b = load<Unit>(from + at + kRow),
                 c = load<Unit>(from + at + 2 * kRow), d = load<Unit>(from + at + 3 * kRow);
      store<Unit>(to + at, a);
      store<Unit>(to + at + kRow, b);
      store<Unit>(to + at + 2 * kRow, c);
      store<Unit>(to + at + 3 * kRow, d);
    }
    for (; at + kRow < bytes; at += 2 * kRow) {
      const Unit a = load<Unit>(from + at), b = load<Unit>(from + at + kRow);
      store<Unit>(to + at, a);
      store<Unit>(to + at + kRow, b);
    }
    if (at < bytes) store<Unit>(to + at, load<Unit>(from + at));
  });
}

template <typename Unit, typename Block>
NZCL_ON_GPU inline void scan_slice(Block& block, const std::byte* tensor, const Pieces& pieces) {
  constexpr std::uint32_t kAtOnce = 4, kRows = 2, kRow = kLanes * sizeof(Unit);
  block.each_warp([&](auto& warp) {
    for (std::uint32_t first = warp.index() * kAtOnce; first < pieces.count();
         first += warp.count() * kAtOnce) {
      Piece of[kAtOnce];
      std::uint32_t longest = 0;
      NZCL_UNROLL for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        of[i] = pieces.at(first + i);
        if (of[i].bytes > longest) longest = of[i].bytes;
      }
      const unsigned found = warp.template any<kAtOnce>([&](unsigned lane) {
        unsigned bits = 0;
        for (std::uint32_t at = lane * static_cast<std::uint32_t>(sizeof(Unit)); at < longest;
             at += kRows * kRow) {
          Unit units[kAtOnce][kRows];
          NZCL_UNROLL for (std::uint32_t i = 0; i < kAtOnce; ++i) {
            NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) {
              const std::uint32_t here = at + r * kRow;
              units[i][r] = here < of[i].bytes ? load<Unit>(tensor + of[i].position + here) : Unit{};
            }
          }
          NZCL_UNROLL for (std::uint32_t i = 0; i < kAtOnce; ++i) {
            NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) bits |= any_bit(units[i][r]) ? 1U << i : 0U;
          }
        }
        return bits;
      });
      warp.once([&] {
        NZCL_UNROLL for (std::uint32_t i = 0; i < kAtOnce; ++i) {
          const std::uint32_t b = of[i].block;
          if ((found >> i & 1) != 0) block.set(b / 64, std::uint64_t{1} << b % 64);
        }
      });
    }
  });
}

NZCL_ON_GPU inline std::uint32_t ones(std::uint64_t word) {
  return static_cast<std::uint32_t>(__builtin_popcountll(word));
}

/// Counts the bits before each of so many words. Returns where the counts are.
template <typename Block>
NZCL_ON_GPU inline const std::uint32_t* count_before(Block& block, const std::uint64_t* bits,
                                                     std::uint32_t words) {
  auto* const before = reinterpret_cast<std::uint32_t*>(block.words() + words);
  std::uint32_t* const in_group = before + words;
  const auto sum = [&](std::uint32_t from, std::uint32_t to) {
    std::uint32_t count = 0;
    for (std::uint32_t w = from; w < to; ++w) count += ones(bits[w]);
    return count;
  };
  constexpr auto kGroup = static_cast<std::uint32_t>(kGroupWords);
  block.each(words / kGroup, [&](std::uint32_t g) { in_group[g] = sum(g * kGroup, (g + 1) * kGroup); });
  block.each(words, [&](std::uint32_t w) {
    std::uint32_t count = sum(w / kGroup * kGroup, w);
    for (std::uint32_t g = 0; g < w / kGroup; ++g) count += in_group[g];
    before[w] = count;
  });
  return before;
}

/// Whether a kernel has to do anything.
NZCL_ON_GPU inline bool goes(const std::uint32_t* go, std::uint32_t value) {
  return go == nullptr || load<std::uint32_t>(reinterpret_cast<const std::byte*>(go)) == value;
}

/// Which of two pieces of memory a slice has.
template <typename Byte>
NZCL_ON_GPU inline Byte* near_or_far(Byte* near, Byte* far, const std::uint8_t* is_far, std::uint64_t slice) {
  if (is_far == nullptr) return near;
  return load<std::uint8_t>(reinterpret_cast<const std::byte*>(is_far + slice)) == 0 ? near : far;
}

template <typename Unit, typename Block>
NZCL_ON_GPU inline void pack_slice(Block& block, const PackJob& job) {
  if (!goes(job.go, job.go_value)) return;
  const Pieces pieces(job.shape, block.index());
  std::uint64_t* const bits = job.bits + block.index() * job.shape.words_per_slice();
  const std::uint32_t words = (pieces.blocks() + 63) / 64;
  std::uint64_t* const shared = block.words();
  block.each(words, [&](std::uint32_t w) { shared[w] = job.known ? bits[w] : 0; });
  const bool scanned = !job.known || job.checked;
  if (scanned) scan_slice<Unit>(block, job.tensor, pieces);
  const std::uint32_t* const before = count_before(block, shared, words);
  std::byte* const base = near_or_far(job.packed, job.far, job.is_far, block.index());
  std::byte* const packed = base + pieces.first_block() * job.shape.block_bytes;
  block.each_warp([&](auto& warp) {
    for (std::uint32_t i = warp.index(); i < pieces.count(); i += warp.count()) {
      const Piece piece = pieces.at(i);
      const std::uint64_t word = shared[piece.block / 64], bit = std::uint64_t{1} << piece.block % 64;
      if ((word & bit) == 0) continue;
      const std::uint64_t rank = before[piece.block / 64] + ones(word & (bit - 1));
      std::byte* const to =
          job.in_places ? base + piece.position : packed + rank * job.shape.block_bytes + piece.offset;
      copy_piece<Unit>(warp, to, job.tensor + piece.position, piece.bytes);
    }
  });
  if (scanned) block.each(words, [&](std::uint32_t w) { bits[w] = shared[w]; });
  if (job.second_bits != nullptr) {
    std::uint64_t* const second = job.second_bits + block.index() * job.shape.words_per_slice();
    block.each(words, [&](std::uint32_t w) { second[w] = shared[w]; });
  }
  if (job.flags != nullptr) block.raise(job.flags + block.index(), job.value);
}

template <typename Unit, typename Block>
NZCL_ON_GPU inline void place_slice(Block& block, const PlaceJob& job) {
  if (!goes(job.go, job.go_value)) return;
  const std::uint64_t slice = job.first_slice + block.index();
  const std::byte* staged = near_or_far(job.staged, job.far, job.is_far, slice);
  if (job.peers != nullptr) {
    const std::uint64_t owner = slice / job.slices_each;
    const auto at = load<std::uint64_t>(reinterpret_cast<const std::byte*>(&job.peers->result[owner]));
    staged = reinterpret_cast<const std::byte*>(at) - share_begin(job.shape, job.slices_each, owner);
  }
  const Pieces pieces(job.shape, slice);
  const std::uint64_t* bits = job.bits + slice * job.shape.words_per_slice();
  const std::uint32_t words = (pieces.blocks() + 63) / 64;
  if (words <= kMostSliceWords) {  // once over the bus, not once for each warp
    std::uint64_t* const shared = block.words();
    block.each(words, [&](std::uint32_t w) { shared[w] = bits[w]; });
    bits = shared;
  }
  block.each_warp([&](auto& warp) {
    for (std::uint32_t i = warp.index(); i < pieces.count(); i += warp.count()) {
      const Piece piece = pieces.at(i);
      std::byte* const to = job.tensor + piece.position;
      if ((bits[piece.block / 64] >> piece.block % 64 & 1) != 0) {
        copy_piece<Unit>(warp, to, staged + piece.position, piece.bytes);
      } else if (job.fill) {
        warp.each_lane([&](unsigned lane) {
          for (std::uint64_t at = lane * sizeof(Unit); at < piece.bytes; at += kLanes * sizeof(Unit))
            store<Unit>(to + at, Unit{});
        });
      }
    }
  });
}

/// This block's share of the pieces of one part of a list, and the bytes behind the last whole unit.
template <typename Unit, typename Block>
NZCL_ON_GPU inline void copy_part(Block& block, const ListJob::Part& part, std::uint64_t bytes,
                                  std::uint32_t runners) {
  const std::uint64_t whole = bytes / sizeof(Unit) * sizeof(Unit);
  block.each_warp([&](auto& warp) {
    for (std::uint64_t at = (block.index() * warp.count() + warp.index()) * kPieceBytes; at < whole;
         at += std::uint64_t{runners} * warp.count() * kPieceBytes) {
      const std::uint64_t n = whole - at < kPieceBytes ? whole - at : kPieceBytes;
      copy_piece<Unit>(warp, part.to + at, part.from + at, static_cast<std::uint32_t>(n));
    }
  });
  if (block.index() == 0)
    block.each(static_cast<std::uint32_t>(bytes - whole),
               [&](std::uint32_t i) { part.to[whole + i] = part.from[whole + i]; });
}

template <typename Unit, typename Block>
NZCL_ON_GPU inline void copy_list(Block& block, const ListJob& job) {
  const auto word = [](const auto* at) {
    return load<std::uint64_t>(reinterpret_cast<const std::byte*>(at));
  };
  ListSizes sizes = job.sizes;
  if (!goes(job.go, job.go_value)) {
    sizes = {};
  } else if (job.found != nullptr) {
    sizes.blocks = word(&job.found->blocks);
    sizes.value_bytes = word(&job.found->value_bytes);
    sizes.index_bytes = word(&job.found->index_bytes);
  }
  copy_part<Unit>(block, job.values, sizes.value_bytes, job.runners);
  copy_part<Unit>(block, job.indices, sizes.index_bytes, job.runners);
  if (job.count != nullptr && block.index() == 0)
    block.each(1, [&](std::uint32_t) {
      store<std::uint64_t>(reinterpret_cast<std::byte*>(job.count), sizes.blocks);
    });
  if (job.flags != nullptr) block.raise(job.flags + block.index(), job.value);
}

}  // namespace nzcl::gpu
