// float16 and bfloat16 to float32 and back, for vectors. Included once per instruction set.
//
// Highway 1.0.3's own conversions are used only where they are single instructions (F16C). Its emulation of
// float16 truncates and handles neither infinity nor NaN, and its bfloat16 always truncates.

#if defined(NZCL_KERNELS_HALF_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NZCL_KERNELS_HALF_INL_H
#undef NZCL_KERNELS_HALF_INL_H
#else
#define NZCL_KERNELS_HALF_INL_H
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#undef NZCL_HAVE_F16C
#if HWY_ARCH_X86 && HWY_TARGET < HWY_SSE4 && !defined(HWY_DISABLE_F16C)  // a smaller value is a newer set
#define NZCL_HAVE_F16C 1
#else
#define NZCL_HAVE_F16C 0
#endif

/// Moves the 16 bits of each element from memory into 32-bit lanes, and back.
template <class D32>
HWY_INLINE hn::Vec<D32> load_u16(D32 d32, const std::uint16_t* p) {
  return hn::PromoteTo(d32, hn::LoadU(hn::Rebind<std::uint16_t, D32>(), p));
}

template <class D32>
HWY_INLINE void store_u16(D32, hn::Vec<D32> v, std::uint16_t* p) {
  // It goes through int32, the only type from which every instruction set can demote; the lanes are below
  // 2^16.
  const hn::Rebind<std::uint16_t, D32> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<D32>(), v)), d16, p);
}

struct Bfloat16 {
  static constexpr std::int64_t kInfinityBits = 0x7f80;
  static constexpr std::int64_t kNanBits = 0x7fc0;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* p) {
    return hn::BitCast(d, hn::ShiftLeft<16>(load_u16(hn::RebindToUnsigned<D>(), p)));
  }

  /// Precondition: the lower half of every NaN is 0, because rounding could turn another NaN into an infinity
  /// or a number.
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> v, std::uint16_t* p) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    store_u16(du, hn::ShiftRight<16>(rounded), p);
  }
};

struct Float16 {
  static constexpr std::int64_t kInfinityBits = 0x7c00;
  static constexpr std::int64_t kNanBits = 0x7e00;

#if NZCL_HAVE_F16C
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* p) {
    const hn::Rebind<std::uint16_t, D> d16;
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), hn::LoadU(d16, p)));
  }

  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> v, std::uint16_t* p) {
    const hn::Rebind<std::uint16_t, D> d16;
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v)), d16, p);
  }
#else
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* p) {
    const hn::RebindToUnsigned<D> du;
    const auto half = load_u16(du, p);
    const auto exponent = hn::And(half, hn::Set(du, 0x7c00));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fff)));
    // The exponents have the biases 15 and 127. The exponent of infinity and NaN is raised by the difference
    // a second time.
    const auto bias = hn::Set(du, std::uint32_t{127 - 15} << 23);
    const auto normal = hn::Add(magnitude, bias);
    const auto special = hn::Add(normal, bias);
    // A subnormal number gets the leading 1 of 2^-14, which is then subtracted exactly.
    const auto one = hn::Set(du, std::uint32_t{127 - 14} << 23);
    const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(magnitude, one)), hn::BitCast(d, one));
    auto bits = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x7c00)), special, normal);
    bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), hn::BitCast(du, subnormal), bits);
    return hn::BitCast(d, hn::Or(bits, hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000)))));
  }

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, std::uint16_t* p) {
    const hn::RebindToUnsigned<D> du;
    // Magnitudes are below 2^31, so they can be compared as signed integers, for which every instruction set
    // has an instruction.
    const hn::RebindToSigned<D> di;
    const auto all = hn::BitCast(di, v);
    const auto magnitude = hn::And(all, hn::Set(di, 0x7fffffff));
    const auto sign = hn::ShiftRight<16>(hn::BitCast(du, hn::Xor(all, magnitude)));
    // A normal number: change the bias of the exponent and round to nearest even. A carry may go into the
    // exponent, which is right.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
    const auto moved = hn::Sub(magnitude, hn::Set(di, ((127 - 15) << 23) - 0xfff));
    const auto normal = hn::ShiftRight<13>(hn::Add(moved, odd));
    // Below 2^-14: next to 0.5, float32 has the spacing 2^-24 of float16's subnormals, so that adding 0.5
    // rounds.
    const auto half = hn::Set(d, 0.5f);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), half);
    const auto subnormal = hn::Sub(hn::BitCast(di, sum), hn::BitCast(di, half));
    // From 2^16 on: infinity or NaN.
    const auto infinite = hn::Set(di, 0x7f800000);
    const auto special =
        hn::IfThenElse(hn::Gt(magnitude, infinite), hn::Set(di, 0x7e00), hn::Set(di, 0x7c00));
    auto bits = hn::IfThenElse(hn::Gt(hn::Set(di, (127 - 14) << 23), magnitude), subnormal, normal);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, ((127 + 16) << 23) - 1)), special, bits);
    store_u16(du, hn::Or(hn::BitCast(du, bits), sign), p);
  }
#endif
};

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_HALF_INL_H
