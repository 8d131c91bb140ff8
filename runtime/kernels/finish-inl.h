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

#include <hwy/cache_control.h>

#include "hwy/highway.h"
#include "runtime/base/cold_memory.h"
#include "runtime/kernels/lanes-inl.h"
#include "runtime/kernels/pack-inl.h"
#include "runtime/kernels/sum_output.h"

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

/// Turns the sums of words into results, and writes them to the outputs that are wanted.
template <class Format, ReduceOp op>
class Finisher {
 public:
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;

  Finisher(const SumOutput& to, std::size_t elements)
      : ranks_(to.ranks),
        packs_(to.packed.data() != nullptr),
        packed_(to.packed.data(), to.packed.size() / sizeof(Element)),
        dense_(reinterpret_cast<Element*>(to.dense)),
        elements_(elements),
        past_caches_(to.where == StoreTo::memory && to.dense != nullptr &&
                     reinterpret_cast<std::uintptr_t>(to.dense) % kCacheLine == 0) {}

  /// Writes one word. `lanes` has its 64 sums, of which those in `any` are in the union. Those in `skipped`
  /// are not held by all ranks, so they are combined with a zero.
  HWY_INLINE void put(std::size_t word, std::uint64_t any, std::uint64_t skipped, const Lane* lanes) {
    alignas(kCacheLine) Element finished[kWordElements];
    packed_.put(packs_ ? popcount(any) : 0, [&](Element* packed) HWY_ATTR {
      const PackTag<Lane> d;
      for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
        const std::uint64_t mask = bits_at(d, any, lane);
        const auto v = finish_lanes<op>(d, hn::LoadU(d, lanes + lane), bits_at(d, skipped, lane), ranks_);
        if (packs_) {
          Format::store(d, pack_lanes(d, v, mask), packed);
          packed += popcount(mask);
        }
        if (dense_ != nullptr) Format::store(d, hn::IfThenElseZero(to_mask(d, mask), v), finished + lane);
      }
    });
    if (dense_ != nullptr) place(word, finished);
  }

  /// Writes a word of which no rank holds any element.
  HWY_INLINE void put_zeros(std::size_t word) {
    if (dense_ == nullptr) return;
    alignas(kCacheLine) static constexpr Element kZeros[kWordElements] = {};
    place(word, kZeros);
  }

  /// Completes the stores that went past the caches. Called once, behind the last word.
  void finish() {
    if (past_caches_) hwy::FlushStream();
  }

 private:
  HWY_INLINE void place(std::size_t word, const Element* from) {
    Element* const to = dense_ + word * kWordElements;
    const std::size_t count = std::min(kWordElements, elements_ - word * kWordElements);
    if (past_caches_ && count == kWordElements) {
      const hn::CappedTag<std::uint8_t, kCacheLine> d;
      for (std::size_t i = 0; i < sizeof(Element) * kWordElements; i += hn::Lanes(d))
        hn::Stream(hn::Load(d, reinterpret_cast<const std::uint8_t*>(from) + i), d,
                   reinterpret_cast<std::uint8_t*>(to) + i);
    } else {
      std::memcpy(to, from, count * sizeof(Element));
    }
  }

  int ranks_;
  bool packs_;
  PackedWriter<Element> packed_;
  Element* dense_;
  std::size_t elements_;
  bool past_caches_;
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
