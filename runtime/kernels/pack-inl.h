// What is done with 64 elements at a time: finding which are not zero, moving these together (packing), and
// spreading them out again (expanding). Included once per instruction set.

#if defined(NZCL_KERNELS_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NZCL_KERNELS_PACK_INL_H
#undef NZCL_KERNELS_PACK_INL_H
#else
#define NZCL_KERNELS_PACK_INL_H
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "runtime/kernels/half-inl.h"
#include "runtime/kernels/packed_words.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#undef NZCL_HAVE_AVX512
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // a smaller value is a newer set
#define NZCL_HAVE_AVX512 1
#else
#define NZCL_HAVE_AVX512 0
#endif

/// The vectors that are packed. Without AVX-512, the way to move lanes is looked up in tables, which have
/// rows for at most 8 lanes.
template <typename Lane>
using PackTag = hn::CappedTag<Lane, NZCL_HAVE_AVX512 ? 64 / sizeof(Lane) : 8>;

/// The format of elements of 1, 2, 4 or 8 bytes where only their bits matter. Elements of 1 and 2 bytes are
/// widened to lanes of 32 bits, because few instruction sets can permute shorter lanes by a mask.
template <std::size_t kBytes>
struct BitsOf {
  using Element = std::conditional_t<kBytes == 4, std::uint32_t, std::uint64_t>;
  using Lane = Element;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Element* p) {
    return hn::LoadU(d, p);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, Element* p) {
    hn::StoreU(v, d, p);
  }
};
template <>
struct BitsOf<2> {
  using Element = std::uint16_t;
  using Lane = std::uint32_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Element* p) {
    return load_u16(d, p);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, Element* p) {
    store_u16(d, v, p);
  }
};
template <>
struct BitsOf<1> {
  using Element = std::uint8_t;
  using Lane = std::int32_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Element* p) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<Element, D>(), p));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> v, Element* p) {
    const hn::Rebind<Element, D> d8;
    hn::StoreU(hn::DemoteTo(d8, v), d8, p);
  }
};

/// Turns the lowest bits of `bits` into a mask, one bit for each lane. to_bits() does the reverse.
template <class D>
HWY_INLINE hn::Mask<D> to_mask([[maybe_unused]] D d, std::uint64_t bits) {
#if NZCL_HAVE_AVX512
  hn::Mask<D> mask;
  mask.raw = static_cast<decltype(mask.raw)>(bits);
  return mask;
#elif HWY_TARGET == HWY_SCALAR
  return hn::Ne(hn::Set(d, static_cast<hn::TFromD<D>>(bits & 1)), hn::Zero(d));
#else
  return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
#endif
}

template <class D>
HWY_INLINE std::uint64_t to_bits([[maybe_unused]] D d, hn::Mask<D> mask) {
#if NZCL_HAVE_AVX512
  return std::uint64_t{mask.raw};
#else
  // The bits are read back with the width with which they were written, because the CPU forwards a store to a
  // load only if the load is not wider.
  using Bits = std::conditional_t<
      hn::MaxLanes(D()) <= 8, std::uint8_t,
      std::conditional_t<hn::MaxLanes(D()) <= 16, std::uint16_t,
                         std::conditional_t<hn::MaxLanes(D()) <= 32, std::uint32_t, std::uint64_t>>>;
  std::uint8_t bytes[hn::MaxLanes(D()) < 64 ? 8 : hn::MaxLanes(D()) / 8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  Bits bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
#endif
}

template <std::size_t kBytes>
using Unsigned =
    std::conditional_t<kBytes == 1, std::uint8_t,
                       std::conditional_t<kBytes == 2, std::uint16_t,
                                          std::conditional_t<kBytes == 4, std::uint32_t, std::uint64_t>>>;

/// Bit i of the result says that element i of the 64 elements at p is not zero.
template <typename T>
HWY_INLINE std::uint64_t nonzero_bits(const T* p) {
  const hn::CappedTag<T, kWordElements> d;
#if !NZCL_HAVE_AVX512
  // Most words are all zero, and on CPUs without mask registers testing for that is cheaper than computing
  // the bits.
  auto all = hn::Zero(d);
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d))
    all = hn::Or(all, hn::LoadU(d, p + lane));
  if (hn::AllTrue(d, hn::Eq(all, hn::Zero(d)))) return 0;
#endif
  std::uint64_t bits = 0;
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d))
    bits |= to_bits(d, hn::Ne(hn::LoadU(d, p + lane), hn::Zero(d))) << lane;
  return bits;
}

#if !NZCL_HAVE_AVX512 && HWY_TARGET != HWY_SCALAR
/// Gives each lane the lane of `v` that this row of a table says. Highway's own Compress() would do for
/// packing, but gcc builds its table on the stack, anew for every vector.
template <class D>
HWY_INLINE hn::Vec<D> look_up_lanes(D d, hn::Vec<D> v, const std::uint8_t* row) {
  static_assert(hn::MaxLanes(D()) <= 8, "the rows of the tables have 8 lanes; see PackTag");
  const hn::RebindToUnsigned<D> du;
  const auto bytes = hn::LoadU(hn::Rebind<std::uint8_t, D>(), row);
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    const hn::Rebind<std::uint32_t, D> d32;
    return hn::TableLookupLanes(v, hn::IndicesFromVec(d, hn::PromoteTo(du, hn::PromoteTo(d32, bytes))));
  } else {
    return hn::TableLookupLanes(v, hn::IndicesFromVec(d, hn::PromoteTo(du, bytes)));
  }
}
#endif

/// Moves the lanes in `bits` together to the front. The content of the lanes behind them is arbitrary. The
/// bits above the last lane must be 0.
template <class D>
HWY_INLINE hn::Vec<D> pack_lanes([[maybe_unused]] D d, hn::Vec<D> v, [[maybe_unused]] std::uint64_t bits) {
#if NZCL_HAVE_AVX512
  return hn::Compress(v, to_mask(d, bits));
#elif HWY_TARGET == HWY_SCALAR
  return v;
#else
  return look_up_lanes(d, v, kPackTable[bits].data());
#endif
}

#if NZCL_HAVE_AVX512
// The numbers of a vector's lanes are loaded from this table, because Highway's Iota() builds one at every
// call.
alignas(64) inline constexpr std::uint32_t kLaneNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                               8, 9, 10, 11, 12, 13, 14, 15};

HWY_INLINE __m512i expand_raw(__mmask16 bits, __m512i v) { return _mm512_maskz_expand_epi32(bits, v); }
HWY_INLINE __m512i expand_raw(__mmask8 bits, __m512i v) { return _mm512_maskz_expand_epi64(bits, v); }
#endif

/// Moves the first values of `v` to the lanes in `bits`; the other lanes become 0. The bits above the last
/// lane must be 0.
template <class D>
HWY_INLINE hn::Vec<D> expand_lanes(D d, hn::Vec<D> v, std::uint64_t bits) {
#if NZCL_HAVE_AVX512
  const hn::RebindToUnsigned<D> du;
  hn::Vec<decltype(du)> u = hn::BitCast(du, v);
  u.raw = expand_raw(to_mask(d, bits).raw, u.raw);
  return hn::BitCast(d, u);
#elif HWY_TARGET == HWY_SCALAR
  return hn::IfThenElseZero(to_mask(d, bits), v);
#else
  return hn::IfThenElseZero(to_mask(d, bits), look_up_lanes(d, v, kExpandTable[bits].data()));
#endif
}

/// The bits of `word` that belong to the vector beginning at `lane`.
template <class D>
HWY_INLINE std::uint64_t bits_at(D d, std::uint64_t word, std::size_t lane) {
  const std::uint64_t bits = word >> lane;
  return hn::Lanes(d) >= 64 ? bits : bits & ((std::uint64_t{1} << hn::Lanes(d)) - 1);
}

HWY_INLINE std::size_t popcount(std::uint64_t bits) { return static_cast<std::size_t>(std::popcount(bits)); }

/// Writes the elements in `bits`, which are kFew at most, and behind them arbitrary ones, so that kFew are
/// written in all.
template <std::size_t kFew, typename Element>
HWY_INLINE void pack_few(const Element* from, std::uint64_t bits, Element* to) {
  // countr_zero() of 0 is a case of its own, for which compilers may add a branch. With the highest bit set,
  // the argument is never 0.
  constexpr std::uint64_t kHighest = std::uint64_t{1} << 63;
  for (std::size_t i = 0; i < kFew; ++i, bits &= bits - 1) to[i] = from[std::countr_zero(bits | kHighest)];
}

/// Writes those of the 64 elements at `from` that are in `bits`, one behind the other. May write up to 64.
template <class Format>
HWY_INLINE void pack_word(const typename Format::Element* from, std::uint64_t bits,
                          typename Format::Element* to) {
#if !NZCL_HAVE_AVX512
  // Moving all lanes by tables takes longer than moving up to kFew elements one by one.
  constexpr std::size_t kFew = 8;
  if (popcount(bits) <= kFew) return pack_few<kFew>(from, bits, to);
#endif
  const PackTag<typename Format::Lane> d;
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
    const std::uint64_t mask = bits_at(d, bits, lane);
    Format::store(d, pack_lanes(d, Format::load(d, from + lane), mask), to);
    to += popcount(mask);
  }
}

/// Spreads packed elements over a word of 64 and calls each(lane, v) for its vectors. The elements in `bits`
/// take their values from `from`, one behind the other, and the others are 0. May read up to 64 elements.
template <class Format, class Each>
HWY_INLINE void expand_word(const typename Format::Element* from, std::uint64_t bits, Each each) {
  const PackTag<typename Format::Lane> d;
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
    const std::uint64_t mask = bits_at(d, bits, lane);
    each(lane, expand_lanes(d, Format::load(d, from), mask));
    from += popcount(mask);
  }
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_PACK_INL_H
