#include "runtime/kernels/narrow.h"

#include <cassert>

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/narrow.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

/// Calls convert(d, i) for vectors of the elements from i on. Elements at the end that fill no vector come
/// one at a time, with a tag for a single element.
template <class Convert>
HWY_INLINE void in_vectors(std::size_t count, Convert convert) {
  const hn::ScalableTag<float> d;
  std::size_t i = 0;
  for (; count - i >= hn::Lanes(d); i += hn::Lanes(d)) convert(d, i);
  for (; i < count; ++i) convert(hn::CappedTag<float, 1>(), i);
}

template <class D>
HWY_INLINE hn::Vec<D> one_nan(D d, hn::Vec<D> v) {
  return hn::IfThenElse(hn::IsNaN(v), hn::Set(d, kNan<D>), v);
}

template <class Format>
void narrow_to(const float* from, std::size_t count, std::uint16_t* to) {
  in_vectors(count, [=](auto d, std::size_t i)
                        HWY_ATTR { Format::store(d, one_nan(d, hn::LoadU(d, from + i)), to + i); });
}

template <class Format>
void widen_from(const std::uint16_t* from, std::size_t count, float* to) {
  in_vectors(count, [=](auto d, std::size_t i)
                        HWY_ATTR { hn::StoreU(one_nan(d, Format::load(d, from + i)), d, to + i); });
}

void narrow_any(bool bfloat, const float* from, std::size_t count, std::uint16_t* to) {
  bfloat ? narrow_to<Bfloat16>(from, count, to) : narrow_to<Float16>(from, count, to);
}

void widen_any(bool bfloat, const std::uint16_t* from, std::size_t count, float* to) {
  bfloat ? widen_from<Bfloat16>(from, count, to) : widen_from<Float16>(from, count, to);
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(narrow_any);
HWY_EXPORT(widen_any);

void narrow(DataType type, const float* from, std::size_t count, std::uint16_t* to) noexcept {
  assert(type == DataType::float16 || type == DataType::bfloat16);
  HWY_DYNAMIC_DISPATCH(narrow_any)(type == DataType::bfloat16, from, count, to);
}

void widen(DataType type, const std::uint16_t* from, std::size_t count, float* to) noexcept {
  assert(type == DataType::float16 || type == DataType::bfloat16);
  HWY_DYNAMIC_DISPATCH(widen_any)(type == DataType::bfloat16, from, count, to);
}

}  // namespace nzcl
#endif  // HWY_ONCE
