#include "runtime/compress/values.h"

#include <algorithm>
#include <cmath>

#include "runtime/kernels/elements.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/compress/values.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The sum of a part of the squares has 32 parts, each of every 32nd value. So the order of the
/// additions, and with it the result, is the same for vectors of any length, and for the warps of a GPU.
double sum_of_part(const float* values, std::size_t count) {
  constexpr std::size_t kSums = 32;
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  alignas(64) double sums[kSums] = {};
  const std::size_t whole = count / kSums * kSums;
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t lane = 0; lane < kSums; lane += hn::Lanes(d)) {
      const auto v = hn::PromoteTo(d, hn::LoadU(df, values + i + lane));
      hn::Store(hn::Add(hn::Load(d, sums + lane), hn::Mul(v, v)), d, sums + lane);
    }
  }
  for (std::size_t i = whole; i < count; ++i) sums[i - whole] += double{values[i]} * double{values[i]};
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

/// Parts are added within slices, and then slices.
double sum_of_squares_any(const float* values, std::size_t count) {
  using compress::kPartOfSquares;
  double total = 0;
  for (std::size_t slice = 0; slice < count; slice += kMostSliceElements) {
    const std::size_t end = std::min(count, slice + kMostSliceElements);
    double of_slice = 0;
    for (std::size_t i = slice; i < end; i += kPartOfSquares)
      of_slice += sum_of_part(values + i, std::min(kPartOfSquares, end - i));
    total += of_slice;
  }
  return total;
}

std::size_t find_non_finite_any(const float* values, std::size_t count) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  // Below 2^31, so they can be compared as signed integers.
  const auto magnitudes_of = [&](const float* from) HWY_ATTR {
    return hn::And(hn::BitCast(di, hn::LoadU(d, from)), hn::Set(di, std::int32_t{compress::kMagnitudeMask}));
  };
  const auto largest_finite = hn::Set(di, std::int32_t{compress::kInfinityBits - 1});
  const std::size_t step = 4 * hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    auto most = magnitudes_of(values + i);
    for (std::size_t lane = hn::Lanes(d); lane < step; lane += hn::Lanes(d))
      most = hn::Max(most, magnitudes_of(values + i + lane));
    if (!hn::AllFalse(di, hn::Gt(most, largest_finite))) break;
  }
  for (; i < count; ++i) {
    if (!std::isfinite(values[i])) return i;
  }
  return count;
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
// HWY_EXPORT must stand in the namespace that holds those of the instruction sets.
namespace nzcl {
HWY_EXPORT(sum_of_squares_any);
HWY_EXPORT(find_non_finite_any);
}  // namespace nzcl

namespace nzcl::compress {

double sum_of_squares(std::span<const float> values) noexcept {
  return HWY_DYNAMIC_DISPATCH(sum_of_squares_any)(values.data(), values.size());
}

std::size_t find_non_finite(std::span<const float> values) noexcept {
  return HWY_DYNAMIC_DISPATCH(find_non_finite_any)(values.data(), values.size());
}

std::size_t count_non_finite(std::span<const float> values) noexcept {
  std::size_t count = 0;
  for (const float value : values) count += is_finite(value) ? 0 : 1;
  return count;
}

void to_sign_and_scale(std::span<float> values, float scale) noexcept {
  const MagnitudeBits magnitude = std::bit_cast<MagnitudeBits>(scale);
  for (float& value : values) {
    const auto sign = std::bit_cast<MagnitudeBits>(value) & 0x80000000u;
    const float sent = std::bit_cast<float>(sign | magnitude);
    value = is_finite(value) ? sent : value;
  }
}

}  // namespace nzcl::compress
#endif  // HWY_ONCE
