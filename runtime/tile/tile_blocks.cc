#include "runtime/tile/tile_blocks.h"

#include <algorithm>
#include <bit>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/offsets.h"

namespace nzcl::engine {
namespace {

/// Moves every second bit of a word, those with even numbers, into its lower half (Warren, Hacker's Delight,
/// section 7-4).
std::uint64_t compress_even(std::uint64_t x) {
  x &= 0x5555555555555555;
  x = (x | x >> 1) & 0x3333333333333333;
  x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0f;
  x = (x | x >> 4) & 0x00ff00ff00ff00ff;
  x = (x | x >> 8) & 0x0000ffff0000ffff;
  return (x | x >> 16) & 0x00000000ffffffff;
}

/// Returns one bit for each block of 2^log2 elements of a word: whether it has any of them.
std::uint64_t fold(std::uint64_t word, int log2) {
  for (int i = 0; i < log2; ++i) word = compress_even(word | word >> 1);
  return word;
}

}  // namespace

TileBlocks::TileBlocks(std::uint64_t block_units)
    : block_(block_units),
      reciprocal_(((std::uint64_t{1} << 32) + block_units - 1) / block_units),
      log2_(std::has_single_bit(block_units) && block_units <= 64 ? std::countr_zero(block_units) : -1) {}

std::uint64_t TileBlocks::count_listed(std::span<const std::uint16_t> offsets) const {
  std::uint64_t count = 0, last = ~std::uint64_t{0};
  for (const std::uint16_t offset : offsets) {
    const std::uint64_t block = block_of(offset);
    count += block != last;
    last = block;
  }
  return count;
}

std::uint64_t TileBlocks::count(const TilePart& part, std::uint64_t units, TileScratch& scratch) const {
  if (block_ == 1) return part.units;
  switch (part.form) {
    case TilePart::Form::none:
      return 0;
    case TilePart::Form::all:
      return blocks(units);
    case TilePart::Form::offsets:
      return count_listed(part.offsets);
    case TilePart::Form::bitmap:
      break;
  }
  return mark(part.bitmap, scratch.blocks(words_for(blocks(units))));
}

std::uint64_t TileBlocks::mark(std::span<const std::uint64_t> bitmap, std::span<std::uint64_t> bits) const {
  if (block_ == 1) {
    if (bits.data() != bitmap.data()) std::copy(bitmap.begin(), bitmap.end(), bits.begin());
  } else if (log2_ > 0) {
    const int together = 1 << log2_;  // words of the bitmap that make one of the result
    for (std::size_t w = 0; w < bits.size(); ++w) {
      std::uint64_t word = 0;
      for (int i = 0; i < together; ++i) {
        const std::size_t from = w * static_cast<std::size_t>(together) + static_cast<std::size_t>(i);
        if (from < bitmap.size() && bitmap[from] != 0)
          word |= fold(bitmap[from], log2_) << (i * (64 >> log2_));
      }
      bits[w] = word;
    }
  } else {  // what is left of a block that has a unit is not looked at
    std::fill(bits.begin(), bits.end(), 0);
    const std::uint64_t end = bitmap.size() * 64;
    for (std::uint64_t unit = next_set(bitmap, 0, end); unit < end;) {
      const std::uint64_t block = block_of(static_cast<std::uint16_t>(unit));
      set_bit(bits, block);
      unit = next_set(bitmap, std::min((block + 1) * block_, end), end);
    }
  }
  return set_size(bits);
}

}  // namespace nzcl::engine
