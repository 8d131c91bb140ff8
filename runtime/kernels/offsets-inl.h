// The set bits of a bitmap, one by one. Included once per instruction set.

#if defined(NZCL_KERNELS_OFFSETS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NZCL_KERNELS_OFFSETS_INL_H
#undef NZCL_KERNELS_OFFSETS_INL_H
#else
#define NZCL_KERNELS_OFFSETS_INL_H
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "runtime/kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

/// Calls each(word) for the words that are not zero, ascending. First 64 words are tested together, because
/// a branch for each word would be mispredicted wherever about half of them are zero.
template <class Each>
HWY_INLINE void for_each_nonzero_word(const std::uint64_t* bitmap, std::size_t words, Each each) {
  std::size_t first = 0;
  for (; first + 64 <= words; first += 64) {
    for (std::uint64_t left = nonzero_bits(bitmap + first); left != 0; left &= left - 1)
      each(first + static_cast<std::size_t>(std::countr_zero(left)));
  }
  for (; first < words; ++first) {
    if (bitmap[first] != 0) each(first);
  }
}

/// Writes the offsets of the bits of one word. May write 64.
HWY_INLINE void write_offsets(std::uint64_t bits, std::size_t word, std::uint16_t* to) {
  const std::uint32_t base = static_cast<std::uint32_t>(word * 64);
#if NZCL_HAVE_AVX512
  const PackTag<std::uint32_t> d;
  for (std::size_t lane = 0; lane < 64; lane += hn::Lanes(d)) {
    const std::uint64_t mask = bits_at(d, bits, lane);
    store_u16(d, pack_lanes(d, hn::Iota(d, base + static_cast<std::uint32_t>(lane)), mask), to);
    to += popcount(mask);
  }
#else
  // Eight at a time, whether they are there or not, so that most words take the same way through the loop.
  while (bits != 0) {
    for (int i = 0; i < 8; ++i) {
      to[i] = static_cast<std::uint16_t>(base + static_cast<std::uint32_t>(std::countr_zero(bits)));
      bits &= bits - 1;
    }
    to += 8;
  }
#endif
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_OFFSETS_INL_H
