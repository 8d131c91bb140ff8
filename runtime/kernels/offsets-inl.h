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

#if NZCL_HAVE_AVX512
/// Writes the offsets of the bits of a word, in the same time however many there are. May write up to 64.
HWY_INLINE void write_all(std::uint64_t bits, std::uint32_t base, std::uint16_t* to) {
  const PackTag<std::uint32_t> d;
  auto offsets = hn::Add(hn::Load(d, kLaneNumbers), hn::Set(d, base));
  for (std::size_t lane = 0; lane < 64; lane += hn::Lanes(d)) {
    const std::uint64_t mask = bits_at(d, bits, lane);
    store_u16(d, pack_lanes(d, offsets, mask), to);
    to += popcount(mask);
    offsets = hn::Add(offsets, hn::Set(d, static_cast<std::uint32_t>(hn::Lanes(d))));
  }
}
#else
/// The same, with a table that has the numbers of the bits in each byte.
HWY_INLINE void write_all(std::uint64_t bits, std::uint32_t base, std::uint16_t* to) {
  const hn::CappedTag<std::uint16_t, 8> d;
  const hn::Rebind<std::uint8_t, decltype(d)> half;
  for (int byte = 0; byte < 8; ++byte, bits >>= 8, base += 8) {
    const std::uint8_t* const numbers = kPackTable[bits & 0xff].data();
    const auto first = hn::Set(d, static_cast<std::uint16_t>(base));
    for (std::size_t lane = 0; lane < 8; lane += hn::Lanes(d))
      hn::StoreU(hn::Add(hn::PromoteTo(d, hn::LoadU(half, numbers + lane)), first), d, to + lane);
    to += popcount(bits & 0xff);
  }
}
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
alignas(64) inline constexpr std::uint8_t kBitNumbers[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/// Writes the offsets of the bits of one word. May write up to 64 offsets. These CPUs can move bytes
/// together, so the numbers of all bits are found at once.
HWY_INLINE void write_offsets(std::uint64_t bits, std::size_t word, std::uint16_t* to) {
  const __m512i numbers = _mm512_maskz_compress_epi8(bits, _mm512_load_si512(kBitNumbers));
  const __m512i first = _mm512_set1_epi16(static_cast<short>(word * 64));
  const auto put = [&](__m256i half, std::uint16_t* at) HWY_ATTR {
    _mm512_storeu_si512(at, _mm512_add_epi16(_mm512_cvtepu8_epi16(half), first));
  };
  put(_mm512_castsi512_si256(numbers), to);
  if (popcount(bits) > 32) put(_mm512_extracti64x4_epi64(numbers, 1), to + 32);
}
#else
/// Writes the offsets of the bits of one word. May write up to 64 offsets.
HWY_INLINE void write_offsets(std::uint64_t bits, std::size_t word, std::uint16_t* to) {
  const std::uint32_t base = static_cast<std::uint32_t>(word * 64);
  // Four offsets are written even if there are fewer bits, so most words of a bitmap with few bits take the
  // same way through this branch, as do most words of one with many. That makes it predictable.
  if (write_lowest<4>(bits, base, to) != 0) write_all(bits, base, to);
}
#endif

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_OFFSETS_INL_H
