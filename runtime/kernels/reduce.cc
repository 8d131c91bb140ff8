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
#include "runtime/kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Formats: how elements come from memory into lanes of the type they are accumulated in, and back.

template <typename T>
struct Plain {
  using Element = T;
  using Lane = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Element* p) {
    return hn::LoadU(d, p);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, Element* p) {
    hn::StoreU(v, d, p);
  }
};

template <class Conversion>
struct Half : Conversion {
  using Element = std::uint16_t;
  using Lane = float;
};

struct WideUint8 {
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

// ---- Operations on accumulators.

template <class D>
inline constexpr bool kFloating = std::is_floating_point_v<hn::TFromD<D>>;

template <class D>
inline constexpr auto kNan = std::numeric_limits<hn::TFromD<D>>::quiet_NaN();

/// `next` where it is smaller (min) or greater (max), else `so_far`. Not Highway's Min and Max for floating
/// point: these leave it to the instruction set what comes of NaN and of -0.0 beside +0.0.
template <ReduceOp op, class D>
HWY_INLINE hn::Vec<D> combine([[maybe_unused]] D d, hn::Vec<D> so_far, hn::Vec<D> next) {
  if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) {
    return hn::Add(so_far, next);
  } else if constexpr (kFloating<D>) {
    const auto better = op == ReduceOp::min ? hn::Lt(next, so_far) : hn::Lt(so_far, next);
    return hn::IfThenElse(hn::Or(better, hn::IsNaN(next)), next, so_far);
  } else {
    return op == ReduceOp::min ? hn::Min(so_far, next) : hn::Max(so_far, next);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> divide(D d, hn::Vec<D> v, int ranks) {
  using Lane = hn::TFromD<D>;
  if constexpr (kFloating<D>) {
    return hn::Div(v, hn::Set(d, static_cast<Lane>(ranks)));
  } else {
    // There is no SIMD division of integers. Of 32-bit ones float64 gives the same quotients, and the
    // compiler vectorises it.
    using Quotient = std::conditional_t<sizeof(Lane) <= sizeof(std::int32_t), double, Lane>;
    HWY_ALIGN Lane lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
      lanes[i] = static_cast<Lane>(static_cast<Quotient>(lanes[i]) / static_cast<Quotient>(ranks));
    }
    return hn::Load(d, lanes);
  }
}

/// What is left to do when all sources are in: the zero of the ranks that skipped, the division, one form of
/// NaN.
template <ReduceOp op, class D>
HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> v, const ReduceSpec& spec) {
  if constexpr (op == ReduceOp::avg) v = divide(d, v, spec.ranks);
  if constexpr (op == ReduceOp::min || op == ReduceOp::max) {
    if (spec.with_zero) v = combine<op>(d, v, hn::Zero(d));
  }
  if constexpr (kFloating<D>) v = hn::IfThenElse(hn::IsNaN(v), hn::Set(d, kNan<D>), v);
  return v;
}

// ---- The loops.

template <typename Element>
struct Operands {
  Element* dst;
  const std::byte* const* sources;
  std::size_t source_count;

  const Element* source(std::size_t s) const { return reinterpret_cast<const Element*>(sources[s]); }
};

/// Asks for the lines kPrefetchBytes behind `p`. The hardware's own prefetchers stop at every page's end, and
/// a page is soon over with several sources (nzcl_kernel_bench, two sources out of cache, AVX-512, three runs
/// in turn: fp32 0.86 .. 0.93 to 0.94 .. 0.98 of the plain loop, bf16 0.75 .. 0.83 to 0.88 .. 0.93).
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
    // Not beyond the run: what follows it in a tensor may be a block that nobody needs.
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

template <class Format, ReduceOp op>
void reduce(std::byte* dst, const std::byte* const* sources, std::size_t source_count, std::size_t elements,
            const ReduceSpec& spec) noexcept {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  const bool zero_matters = spec.with_zero && (op == ReduceOp::min || op == ReduceOp::max);
  if (source_count == 1 && op != ReduceOp::avg && !zero_matters) {
    if (dst != sources[0]) copy_cold(dst, sources[0], elements * sizeof(Element));
    return;
  }
  // Shorter and shorter vectors for the tail: reading beyond the end may fault, and overlapping the elements
  // already done would reduce them twice where dst is a source.
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
