// How elements come from memory into the lanes that they are computed in, and what is computed with them.
// Included once per instruction set. Whatever sums uses this header, so that all ways to sum give the same
// bits.

#if defined(NZCL_KERNELS_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NZCL_KERNELS_LANES_INL_H
#undef NZCL_KERNELS_LANES_INL_H
#else
#define NZCL_KERNELS_LANES_INL_H
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "nzcl/types.h"
#include "runtime/kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Formats: how elements come from memory into lanes of the type they are accumulated in, and back.

template <typename T>
struct Plain {
  using Element = T;
  using Lane = T;
  static constexpr std::int64_t kInfinityBits = sizeof(T) == 4 ? 0x7f800000 : 0x7ff0000000000000;
  static constexpr std::int64_t kNanBits = sizeof(T) == 4 ? 0x7fc00000 : 0x7ff8000000000000;
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

/// `next` where it is smaller (min) or greater (max), otherwise `so_far`. Highway's Min and Max do not serve
/// for floating point, because NaNs, and -0.0 beside +0.0, give results that depend on the instruction set.
/// Between equal values the sign of zero decides: min takes a minus from either, max keeps it only if both
/// have it. All other equal values have the same bits, which neither operation changes.
template <ReduceOp op, class D>
HWY_INLINE hn::Vec<D> combine([[maybe_unused]] D d, hn::Vec<D> so_far, hn::Vec<D> next) {
  if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) {
    return hn::Add(so_far, next);
  } else if constexpr (kFloating<D>) {
    const auto better = op == ReduceOp::min ? hn::Lt(next, so_far) : hn::Lt(so_far, next);
    const auto equal = op == ReduceOp::min ? hn::Or(next, so_far) : hn::And(next, so_far);
    const auto kept = hn::IfThenElse(hn::Eq(next, so_far), equal, so_far);
    return hn::IfThenElse(hn::Or(better, hn::IsNaN(next)), next, kept);
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
    // There is no SIMD division of integers. For 32-bit integers float64 gives the same quotients, and the
    // compiler vectorises it.
    using Quotient = std::conditional_t<sizeof(Lane) <= sizeof(std::int32_t), double, Lane>;
    // As large as a whole vector: for a part of one, such as Rebind makes, MaxLanes() of Highway 1.0 says
    // less than Lanes() on SVE.
    HWY_ALIGN Lane lanes[HWY_LANES(Lane)];
    hn::Store(v, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
      lanes[i] = static_cast<Lane>(static_cast<Quotient>(lanes[i]) / static_cast<Quotient>(ranks));
    }
    return hn::Load(d, lanes);
  }
}

/// Whether one more source of zeros can change a result. It can change any minimum or maximum, but a sum only
/// if that is -0.0.
template <ReduceOp op, typename Lane>
inline constexpr bool kZeroMatters =
    op == ReduceOp::min || op == ReduceOp::max || std::is_floating_point_v<Lane>;

/// The last steps of a reduction: the division, and the one form of NaN.
template <ReduceOp op, class D>
HWY_INLINE hn::Vec<D> settle(D d, hn::Vec<D> v, int ranks) {
  if constexpr (op == ReduceOp::avg) v = divide(d, v, ranks);
  if constexpr (kFloating<D>) v = hn::IfThenElse(hn::IsNaN(v), hn::Set(d, kNan<D>), v);
  return v;
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_LANES_INL_H
