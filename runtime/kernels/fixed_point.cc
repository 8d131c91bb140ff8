#include "runtime/kernels/fixed_point.h"

#include <cmath>

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/fixed_point.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls step(d, i) for vectors of the elements from i on. Elements at the end that fill no vector come one
/// at a time, with a tag for a single element.
template <typename T, class Step>
HWY_INLINE void in_vectors(std::size_t count, Step step) {
  const hn::ScalableTag<T> d;
  std::size_t i = 0;
  for (; count - i >= hn::Lanes(d); i += hn::Lanes(d)) step(d, i);
  for (; i < count; ++i) step(hn::CappedTag<T, 1>(), i);
}

std::uint32_t largest_magnitude(const std::uint32_t* from, std::size_t count) {
  std::uint32_t largest = 0;
  const hn::ScalableTag<std::uint32_t> d;
  auto all = hn::Zero(d);
  const auto magnitude = hn::Set(d, 0x7fffffffu);
  std::size_t i = 0;
  for (; count - i >= hn::Lanes(d); i += hn::Lanes(d))
    all = hn::Max(all, hn::And(hn::LoadU(d, from + i), magnitude));
  largest = hn::GetLane(hn::MaxOfLanes(d, all));
  const hn::CappedTag<std::uint32_t, 1> one;
  for (; i < count; ++i) {
    const std::uint32_t value = hn::GetLane(hn::LoadU(one, from + i)) & 0x7fffffffu;
    if (value > largest) largest = value;
  }
  return largest;
}

bool scale_to(const float* from, std::size_t count, float first, float second, float limit,
              std::int32_t* to) {
  bool clamped = false;
  in_vectors<float>(count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto v = hn::Mul(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, first)), hn::Set(d, second));
    const auto most = hn::Set(d, limit);
    const auto fits = hn::Le(hn::Abs(v), most);  // false for NaN
    clamped |= !hn::AllTrue(d, fits);
    const hn::RebindToSigned<decltype(d)> di;
    hn::StoreU(hn::NearestInt(hn::IfThenElse(fits, v, hn::CopySign(most, v))), di, to + i);
  });
  return clamped;
}

void scale_from(const std::int32_t* from, std::size_t count, float first, float second, float divisor,
                float* to) {
  in_vectors<std::int32_t>(count, [=](auto di, std::size_t i) HWY_ATTR {
    const hn::RebindToFloat<decltype(di)> d;
    const auto v =
        hn::Mul(hn::Mul(hn::ConvertTo(d, hn::LoadU(di, from + i)), hn::Set(d, first)), hn::Set(d, second));
    hn::StoreU(hn::Div(v, hn::Set(d, divisor)), d, to + i);
  });
}

void add_into(const std::int32_t* from, std::size_t count, std::int32_t* to) {
  in_vectors<std::int32_t>(count, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
  });
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(largest_magnitude);
HWY_EXPORT(scale_to);
HWY_EXPORT(scale_from);
HWY_EXPORT(add_into);

namespace {
// 2^shift is split into two factors, because it may be larger or smaller than a float32 can be.
float first_factor(int shift) { return std::ldexp(1.0f, shift / 2); }
float second_factor(int shift) { return std::ldexp(1.0f, shift - shift / 2); }
}  // namespace

std::uint8_t largest_exponent(const float* from, std::size_t count) noexcept {
  // Only Highway's loads read through this pointer, and they may read any type.
  const auto* bits = reinterpret_cast<const std::uint32_t*>(from);
  return static_cast<std::uint8_t>(HWY_DYNAMIC_DISPATCH(largest_magnitude)(bits, count) >> 23);
}

bool to_fixed(const float* from, std::size_t count, int shift, std::int32_t limit,
              std::int32_t* to) noexcept {
  return HWY_DYNAMIC_DISPATCH(scale_to)(from, count, first_factor(shift), second_factor(shift),
                                        static_cast<float>(limit), to);
}

void from_fixed(const std::int32_t* from, std::size_t count, int shift, float divisor, float* to) noexcept {
  HWY_DYNAMIC_DISPATCH(scale_from)(from, count, first_factor(-shift), second_factor(-shift), divisor, to);
}

void add_wrapping(const std::int32_t* from, std::size_t count, std::int32_t* to) noexcept {
  HWY_DYNAMIC_DISPATCH(add_into)(from, count, to);
}

}  // namespace nzcl
#endif  // HWY_ONCE
