#include "runtime/kernels/reduce.h"

#include <cstdint>
#include <limits>
#include <type_traits>

#include "runtime/base/cold_memory.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/reduce.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// What comes after all sources. The zero of the ranks that skipped the block may come last, because its
/// place among the sources makes no difference to any operation.
template <ReduceOp op, class D>
HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> v, const ReduceSpec& spec) {
  if constexpr (kZeroMatters<op, hn::TFromD<D>>) {
    if (spec.with_zero) v = combine<op>(d, v, hn::Zero(d));
  }
  return settle<op>(d, v, spec.ranks);
}

// ---- The loops.

template <typename Element>
struct Operands {
  Element* dst;
  const std::byte* const* sources;
  std::size_t source_count;

  const Element* source(std::size_t s) const { return reinterpret_cast<const Element*>(sources[s]); }
};

/// Prefetches the lines that lie kPrefetchBytes behind `p`. The hardware's own prefetchers stop at the end of
/// each page, which the loop reaches often when it reads several sources.
template <typename Element>
HWY_INLINE void prefetch_behind(const Element* p, std::size_t elements) {
  prefetch_to_read(reinterpret_cast<const std::byte*>(p) + kPrefetchBytes, elements * sizeof(Element));
}

/// Reduces elements from `at` on for as long as whole vectors fit, and returns where it stopped. A chunk of
/// four vectors stays in registers while all sources are added: every source is read once, dst is written
/// once and may be a source.
template <class Format, ReduceOp op, class D>
HWY_INLINE std::size_t reduce_from(D d, std::size_t at, std::size_t elements,
                                   const Operands<typename Format::Element>& o, const ReduceSpec& spec) {
  using Element = typename Format::Element;
  const std::size_t n = hn::Lanes(d);
  for (; elements - at >= 4 * n; at += 4 * n) {
    // Nothing beyond the run is prefetched, because the tensor may go on with a block that nobody needs.
    const bool more = elements - at >= kPrefetchBytes / sizeof(Element) + 4 * n;
    const Element* const first = o.source(0) + at;
    if (more) prefetch_behind(first, 4 * n);
    auto v0 = Format::load(d, first), v1 = Format::load(d, first + n);
    auto v2 = Format::load(d, first + 2 * n), v3 = Format::load(d, first + 3 * n);
    for (std::size_t s = 1; s < o.source_count; ++s) {
      const Element* const next = o.source(s) + at;
      if (more) prefetch_behind(next, 4 * n);
      v0 = combine<op>(d, v0, Format::load(d, next));
      v1 = combine<op>(d, v1, Format::load(d, next + n));
      v2 = combine<op>(d, v2, Format::load(d, next + 2 * n));
      v3 = combine<op>(d, v3, Format::load(d, next + 3 * n));
    }
    Format::store(d, finish<op>(d, v0, spec), o.dst + at);
    Format::store(d, finish<op>(d, v1, spec), o.dst + at + n);
    Format::store(d, finish<op>(d, v2, spec), o.dst + at + 2 * n);
    Format::store(d, finish<op>(d, v3, spec), o.dst + at + 3 * n);
  }
  for (; elements - at >= n; at += n) {
    auto v = Format::load(d, o.source(0) + at);
    for (std::size_t s = 1; s < o.source_count; ++s) v = combine<op>(d, v, Format::load(d, o.source(s) + at));
    Format::store(d, finish<op>(d, v, spec), o.dst + at);
  }
  return at;
}

/// The bits of an element as an integer, and the masks that tell zeros and NaNs apart.
template <class Format>
struct Bits {
  using Element = std::conditional_t<
      sizeof(typename Format::Element) == 2, std::int16_t,
      std::conditional_t<sizeof(typename Format::Element) == 4, std::int32_t, std::int64_t>>;
  static constexpr Element kMinusZero = std::numeric_limits<Element>::min();
  static constexpr Element kInfinity = Format::kInfinityBits;
  static constexpr Element kNan = Format::kNanBits;
};

/// The sum of one source and of the zeros of the ranks that skipped the block. It is a copy, except that -0.0
/// becomes +0.0 and a NaN gets its one form. Most blocks of a sparse tensor are such sums, so it is worth
/// leaving out the conversion to the accumulator's type and the stores of values that are in place already.
template <class Format, class D>
HWY_INLINE std::size_t copy_from(D d, std::size_t at, std::size_t elements, const std::byte* source,
                                 std::byte* dst) {
  using B = Bits<Format>;
  using Element = typename B::Element;
  const auto minus_zero = hn::Set(d, B::kMinusZero);
  const auto infinity = hn::Set(d, B::kInfinity);
  const auto nan = hn::Set(d, B::kNan);
  const std::size_t n = hn::Lanes(d);
  const auto* const from = reinterpret_cast<const Element*>(source);
  auto* const to = reinterpret_cast<Element*>(dst);
  const auto clean = [&](auto v) HWY_ATTR {
    const auto is_nan = hn::Gt(hn::AndNot(minus_zero, v), infinity);
    return hn::IfThenElse(is_nan, nan, hn::IfThenZeroElse(hn::Eq(v, minus_zero), v));
  };
  for (; elements - at >= 4 * n; at += 4 * n) {
    const bool more = elements - at >= kPrefetchBytes / sizeof(Element) + 4 * n;
    if (more) prefetch_behind(from + at, 4 * n);
    const auto v0 = hn::LoadU(d, from + at), v1 = hn::LoadU(d, from + at + n);
    const auto v2 = hn::LoadU(d, from + at + 2 * n), v3 = hn::LoadU(d, from + at + 3 * n);
    hn::StoreU(clean(v0), d, to + at);
    hn::StoreU(clean(v1), d, to + at + n);
    hn::StoreU(clean(v2), d, to + at + 2 * n);
    hn::StoreU(clean(v3), d, to + at + 3 * n);
  }
  for (; elements - at >= n; at += n) hn::StoreU(clean(hn::LoadU(d, from + at)), d, to + at);
  return at;
}

template <class Format>
void copy_plus_zero(std::byte* dst, const std::byte* source, std::size_t elements) {
  using Element = typename Bits<Format>::Element;
  const std::size_t at = copy_from<Format>(hn::ScalableTag<Element>(), 0, elements, source, dst);
  copy_from<Format>(hn::CappedTag<Element, 1>(), at, elements, source, dst);
}

template <class Format, ReduceOp op>
void reduce(std::byte* dst, const std::byte* const* sources, std::size_t source_count, std::size_t elements,
            const ReduceSpec& spec) noexcept {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  const bool zero_matters = spec.with_zero && kZeroMatters<op, Lane>;
  if (source_count == 1 && op != ReduceOp::avg && !zero_matters) {
    if (dst != sources[0]) copy_cold(dst, sources[0], elements * sizeof(Element));
    return;
  }
  if constexpr (op == ReduceOp::sum && std::is_floating_point_v<Lane>) {
    if (source_count == 1) return copy_plus_zero<Format>(dst, sources[0], elements);
  }
  // The tail is reduced with shorter and shorter vectors. A full vector could read beyond the end, which may
  // fault, or go over elements that are done already, which would reduce them twice if dst is a source.
  const Operands<Element> operands{reinterpret_cast<Element*>(dst), sources, source_count};
  std::size_t at = reduce_from<Format, op>(hn::ScalableTag<Lane>(), 0, elements, operands, spec);
  at = reduce_from<Format, op>(hn::CappedTag<Lane, 16 / sizeof(Lane)>(), at, elements, operands, spec);
  reduce_from<Format, op>(hn::CappedTag<Lane, 1>(), at, elements, operands, spec);
}

// ---- Selection.

template <class Format, class AvgFormat = Format>
ReduceFn for_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return &reduce<Format, ReduceOp::sum>;
    case ReduceOp::avg:
      return &reduce<AvgFormat, ReduceOp::avg>;
    case ReduceOp::min:
      return &reduce<Format, ReduceOp::min>;
    case ReduceOp::max:
      return &reduce<Format, ReduceOp::max>;
  }
  return nullptr;
}

ReduceFn select(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::float32:
      return for_op<Plain<float>>(op);
    case DataType::float64:
      return for_op<Plain<double>>(op);
    case DataType::float16:
      return for_op<Half<Float16>>(op);
    case DataType::bfloat16:
      return for_op<Half<Bfloat16>>(op);
    case DataType::int32:
      return for_op<Plain<std::int32_t>>(op);
    case DataType::int64:
      return for_op<Plain<std::int64_t>>(op);
    case DataType::uint8:
      return for_op<Plain<std::uint8_t>, WideUint8>(op);
  }
  return nullptr;
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(select);

ReduceFn reduce_kernel(DataType type, ReduceOp op) noexcept { return HWY_DYNAMIC_DISPATCH(select)(type, op); }

}  // namespace nzcl
#endif  // HWY_ONCE
