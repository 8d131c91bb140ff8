// The last steps of a sum of single elements, 64 at a time. Included once per instruction set.

#if defined(NZCL_KERNELS_FINISH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NZCL_KERNELS_FINISH_INL_H
#undef NZCL_KERNELS_FINISH_INL_H
#else
#define NZCL_KERNELS_FINISH_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "hwy/highway.h"
#include "runtime/base/cold_memory.h"
#include "runtime/kernels/lanes-inl.h"
#include "runtime/kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The format of uint8 for all operations. Its lanes have 32 bits, because lanes of 8 bits cannot be expanded
/// (pack-inl.h). Sums wrap when they are stored.
struct WrappingUint8 : WideUint8 {
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, Element* p) {
    WideUint8::store(d, hn::And(v, hn::Set(d, 0xff)), p);
  }
};

/// The value that changes no other value when the operation combines the two.
template <ReduceOp op, typename Lane>
constexpr Lane identity() {
  using Limits = std::numeric_limits<Lane>;
  if constexpr (op == ReduceOp::min) return Limits::has_infinity ? Limits::infinity() : Limits::max();
  if constexpr (op == ReduceOp::max) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return Limits::is_iec559 ? static_cast<Lane>(-0.0) : Lane{0};
}

/// Turns sums into results. The lanes in `skipped` are not held by all ranks, so they are first combined with
/// the zero of the ranks that do not hold them.
template <ReduceOp op, class D>
HWY_INLINE hn::Vec<D> finish_lanes(D d, hn::Vec<D> v, [[maybe_unused]] std::uint64_t skipped, int ranks) {
  if constexpr (kZeroMatters<op, hn::TFromD<D>>)
    v = hn::IfThenElse(to_mask(d, skipped), combine<op>(d, v, hn::Zero(d)), v);
  return settle<op>(d, v, ranks);
}

/// Turns the sums of words into results, and writes those of the union one behind the other.
template <class Format, ReduceOp op>
class Finisher {
 public:
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;

  /// `packed` has room for the whole union.
  Finisher(int ranks, std::span<std::byte> packed)
      : ranks_(ranks), packed_(packed.data(), packed.size() / sizeof(Element)) {}

  /// Writes one word. `lanes` has its 64 sums, of which those in `any` are in the union. Those in `skipped`
  /// are not held by all ranks, so they are combined with a zero.
  HWY_INLINE void put(std::uint64_t any, std::uint64_t skipped, const Lane* lanes) {
    packed_.put(popcount(any), [&](Element* packed) HWY_ATTR {
      const PackTag<Lane> d;
      for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
        const std::uint64_t mask = bits_at(d, any, lane);
        const auto v = finish_lanes<op>(d, hn::LoadU(d, lanes + lane), bits_at(d, skipped, lane), ranks_);
        Format::store(d, pack_lanes(d, v, mask), packed);
        packed += popcount(mask);
      }
    });
  }

 private:
  int ranks_;
  PackedWriter<Element> packed_;
};

/// Returns make.operator()<Format, op>(), a pointer; null for values outside the enums.
template <class Format, class Make>
auto by_op(ReduceOp op, Make make) -> decltype(make.template operator()<Format, ReduceOp::sum>()) {
  switch (op) {
    case ReduceOp::sum:
      return make.template operator()<Format, ReduceOp::sum>();
    case ReduceOp::avg:
      return make.template operator()<Format, ReduceOp::avg>();
    case ReduceOp::min:
      return make.template operator()<Format, ReduceOp::min>();
    case ReduceOp::max:
      return make.template operator()<Format, ReduceOp::max>();
  }
  return nullptr;
}

template <class Make>
auto by_type_and_op(DataType type, ReduceOp op, Make make) -> decltype(by_op<Plain<float>>(op, make)) {
  switch (type) {
    case DataType::float32:
      return by_op<Plain<float>>(op, make);
    case DataType::float64:
      return by_op<Plain<double>>(op, make);
    case DataType::float16:
      return by_op<Half<Float16>>(op, make);
    case DataType::bfloat16:
      return by_op<Half<Bfloat16>>(op, make);
    case DataType::int32:
      return by_op<Plain<std::int32_t>>(op, make);
    case DataType::int64:
      return by_op<Plain<std::int64_t>>(op, make);
    case DataType::uint8:
      return by_op<WrappingUint8>(op, make);
  }
  return nullptr;
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_FINISH_INL_H
