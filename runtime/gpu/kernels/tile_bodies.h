// The kernel that packs single elements and small blocks, written once as those of bodies.h are. A block of
// threads has a tile.
#pragma once

#include "runtime/gpu/kernels/bodies.h"

namespace nzcl::gpu {

/// Sets the bits of the blocks that are not zero, of which each has `in_block` units and the last one may
/// have fewer. A lane asks for a unit of each of several rows of lanes before it looks at the first, because
/// memory answers late: for 64 bytes, or 16 units.
template <typename Unit, typename Block>
NZCL_ON_GPU inline void scan_tile(Block& block, const std::byte* tile, std::uint32_t units,
                                  std::uint32_t in_block) {
  constexpr std::uint32_t kRows = sizeof(Unit) > 4 ? 64 / sizeof(Unit) : 16, kAtOnce = kRows * kLanes;
  block.each_warp([&](auto& warp) NZCL_INLINE {
    for (std::uint32_t first = warp.index() * kAtOnce; first < units; first += warp.count() * kAtOnce) {
      unsigned found[kRows];
      warp.template ballot<kRows>(found, [&](unsigned lane) NZCL_INLINE {
        Unit at[kRows];
        NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) {
          const std::uint32_t unit = first + r * kLanes + lane;
          at[r] = unit < units ? load<Unit>(tile + std::uint64_t{unit} * sizeof(Unit)) : Unit{};
        }
        unsigned bits = 0;
        NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) bits |= any_bit(at[r]) ? 1U << r : 0U;
        return bits;
      });
      if (in_block == 1) {  // a row of lanes is half a word
        warp.once([&] {
          NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) {
            const std::uint32_t at = first + r * kLanes;
            if (found[r] != 0) block.set(at / 64, std::uint64_t{found[r]} << at % 64);
          }
        });
        continue;
      }
      warp.each_lane([&](unsigned lane) NZCL_INLINE {
        NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) {
          if ((found[r] >> lane & 1) == 0) continue;
          const std::uint32_t unit = first + r * kLanes + lane, b = unit / in_block;
          // The lane before has set the bit if its unit is of the same block.
          if (lane > 0 && (found[r] >> (lane - 1) & 1) != 0 && unit > b * in_block) continue;
          block.set(b / 64, std::uint64_t{1} << b % 64);
        }
      });
    }
  });
}

/// Which of 64 bits is the one that so many others come before. There are more than so many.
NZCL_ON_GPU inline std::uint32_t place_of_bit(std::uint64_t bits, std::uint32_t before) {
  std::uint32_t place = 0;
  NZCL_UNROLL for (std::uint32_t half = 32; half > 0; half /= 2) {
    const std::uint32_t low = ones(bits & ((std::uint64_t{1} << half) - 1));
    if (before < low) continue;
    before -= low;
    bits >>= half;
    place += half;
  }
  return place;
}

/// The number of the block that so many packed ones come before.
NZCL_ON_GPU inline std::uint32_t packed_block(const std::uint64_t* bits, const std::uint32_t* before,
                                              std::uint32_t words, std::uint32_t rank) {
  std::uint32_t word = 0;  // the last one that no more than `rank` come before
  for (std::uint32_t left = words; left > 1;) {
    const std::uint32_t half = left / 2;
    if (before[word + half] <= rank) word += half;
    left -= half;
  }
  return word * 64 + place_of_bit(bits[word], rank - before[word]);
}

/// What is packed is written in the order in which it lies in pinned memory, so that lanes write beside each
/// other however few blocks there are: for each unit, its block is looked for.
template <typename Unit, typename Block>
NZCL_ON_GPU inline void pack_tile(Block& block, const TilesJob& job) {
  const Shape& shape = job.shape;
  const std::uint64_t first = block.index() * shape.slice_blocks, all = shape.blocks(),
                      begin = first * shape.block_bytes;
  const auto blocks = static_cast<std::uint32_t>(
      first >= all ? 0 : (all - first < shape.slice_blocks ? all - first : shape.slice_blocks));
  const std::uint64_t most = blocks * shape.block_bytes, left = blocks == 0 ? 0 : shape.bytes - begin,
                      bytes = left < most ? left : most;
  const auto units = static_cast<std::uint32_t>(bytes / sizeof(Unit)),
             in_block = static_cast<std::uint32_t>(shape.block_bytes / sizeof(Unit));
  const std::uint32_t words = (blocks + 63) / 64;
  const std::byte* const tile = job.tensor + begin;
  std::byte* const packed = job.packed + begin;
  std::uint64_t* const bits = block.words();
  std::uint64_t* const set = job.sets + block.index() * shape.words_per_slice();

  block.each(words, [&](std::uint32_t w) { bits[w] = 0; });
  scan_tile<Unit>(block, tile, units, in_block);
  const std::uint32_t* const before = count_before(block, bits, words);
  const std::uint32_t count = words == 0 ? 0 : before[words - 1] + ones(bits[words - 1]);
  if (count == blocks) {
    block.each_warp([&](auto& warp) {
      for (std::uint64_t at = warp.index() * kPieceBytes; at < bytes; at += warp.count() * kPieceBytes) {
        const std::uint64_t n = bytes - at < kPieceBytes ? bytes - at : kPieceBytes;
        copy_piece<Unit>(warp, packed + at, tile + at, static_cast<std::uint32_t>(n));
      }
    });
  } else {
    if (TilesJob::numbers_fit(count, blocks)) {
      auto* const numbers = reinterpret_cast<std::uint16_t*>(set);
      block.each(count, [&](std::uint32_t i) {
        numbers[i] = static_cast<std::uint16_t>(packed_block(bits, before, words, i));
      });
    } else {
      block.each(words, [&](std::uint32_t w) { set[w] = bits[w]; });
    }
    const bool has_last = (bits[(blocks - 1) / 64] >> (blocks - 1) % 64 & 1) != 0;
    const std::uint32_t missing =
        has_last ? blocks * in_block - units : 0;  // of a last block that is shorter
    block.each(count * in_block - missing, [&](std::uint32_t i) {
      const std::uint32_t rank = in_block == 1 ? i : i / in_block,
                          unit = packed_block(bits, before, words, rank) * in_block + (i - rank * in_block);
      store<Unit>(packed + std::uint64_t{i} * sizeof(Unit),
                  load<Unit>(tile + std::uint64_t{unit} * sizeof(Unit)));
    });
  }
  block.each(1, [&](std::uint32_t) { job.counts[block.index()] = count; });
  if (job.flags != nullptr) block.raise(job.flags + block.index(), job.value);
}

}  // namespace nzcl::gpu
