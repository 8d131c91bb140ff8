// hash32() in vectors. Included once per instruction set.

#if defined(NZCL_COMPRESS_RANDOM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NZCL_COMPRESS_RANDOM_INL_H
#undef NZCL_COMPRESS_RANDOM_INL_H
#else
#define NZCL_COMPRESS_RANDOM_INL_H
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The numbers of a vector's lanes are loaded from this table, because Highway's Iota() builds one at every
// call.
alignas(64) inline constexpr std::uint32_t kElementNumbers[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/// first, first + 1, ...
template <class D>
HWY_INLINE hn::Vec<D> numbers_from(D d, std::uint32_t first) {
  return hn::Add(hn::LoadU(d, kElementNumbers), hn::Set(d, first));
}

/// hash32(key, i) for each lane of i.
template <class D>
HWY_INLINE hn::Vec<D> hash_lanes(D d, std::uint64_t key, hn::Vec<D> i) {
  auto z = hn::Add(hn::Mul(i, hn::Set(d, 0x9e3779b9u)), hn::Set(d, static_cast<std::uint32_t>(key)));
  z = hn::Mul(hn::Xor(z, hn::ShiftRight<16>(z)), hn::Set(d, 0x7feb352du));
  z = hn::Xor(z, hn::Set(d, static_cast<std::uint32_t>(key >> 32)));
  z = hn::Mul(hn::Xor(z, hn::ShiftRight<15>(z)), hn::Set(d, 0x846ca68bu));
  return hn::Xor(z, hn::ShiftRight<16>(z));
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_COMPRESS_RANDOM_INL_H
