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

#if NZCL_HAVE_AVX512
// The numbers of a vector's lanes are loaded from this table, because Highway's Iota() builds one at every
// call.
alignas(64) inline constexpr std::uint32_t kLaneNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                               8, 9, 10, 11, 12, 13, 14, 15};

/// Writes the offsets of the bits of a word that has many. May write up to 64 offsets.
HWY_INLINE void compress_offsets(std::uint64_t bits, std::uint32_t base, std::uint16_t* to) {
  const PackTag<std::uint32_t> d;
  auto offsets = hn::Add(hn::Load(d, kLaneNumbers), hn::Set(d, base));
  for (std::size_t lane = 0; lane < 64; lane += hn::Lanes(d)) {
    const std::uint64_t mask = bits_at(d, bits, lane);
    store_u16(d, pack_lanes(d, offsets, mask), to);
    to += popcount(mask);
    offsets = hn::Add(offsets, hn::Set(d, static_cast<std::uint32_t>(hn::Lanes(d))));
  }
}
#endif

/// Writes kCount offsets: those of the lowest bits, and arbitrary ones if there are fewer bits. Returns the
/// bits that are left.
template <int kCount>
HWY_INLINE std::uint64_t write_lowest(std::uint64_t bits, std::uint32_t base, std::uint16_t* to) {
  // countr_zero() of 0 is a case of its own, for which compilers may add a branch. With the highest bit set,
  // the argument is never 0.
  constexpr std::uint64_t kHighest = std::uint64_t{1} << 63;
  for (int i = 0; i < kCount; ++i) {
    to[i] = static_cast<std::uint16_t>(base + static_cast<std::uint32_t>(std::countr_zero(bits | kHighest)));
    bits &= bits - 1;
  }
  return bits;
}

/// Writes the offsets of the bits of one word. May write up to 64 offsets.
HWY_INLINE void write_offsets(std::uint64_t bits, std::size_t word, std::uint16_t* to) {
  const std::uint32_t base = static_cast<std::uint32_t>(word * 64);
#if NZCL_HAVE_AVX512
  if (popcount(bits) > 16) return compress_offsets(bits, base, to);
#endif
  // Several offsets at a time are written even if there are fewer bits. So most words take the same way
  // through these branches, which makes them predictable.
  for (int i = 0; i < 2 && bits != 0; ++i, to += 4) bits = write_lowest<4>(bits, base, to);
  for (; bits != 0; to += 8) bits = write_lowest<8>(bits, base, to);
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_OFFSETS_INL_H
