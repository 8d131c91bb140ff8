#include "runtime/kernels/list_sum.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <type_traits>

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/list_sum.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

/// One of several merges whose steps alternate. Which list has the next element cannot be predicted, so a
/// step has no branch. But it must wait for the result of the step before it; while it waits, the CPU
/// executes the steps of the other merges.
template <class Format, ReduceOp op>
struct SideMerge {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  using One = hn::CappedTag<Lane, 1>;

  const std::uint16_t *a, *a_end, *b, *b_end;
  const Lane* a_lanes;
  const Element* b_values;
  std::uint16_t* out;
  Lane* out_lanes;

  static HWY_INLINE hn::Vec<One> all_bits_if(bool taken) {
    using Bits = hn::TFromD<hn::RebindToUnsigned<One>>;
    return hn::BitCast(One(), hn::Set(hn::RebindToUnsigned<One>(), static_cast<Bits>(Bits{0} - Bits{taken})));
  }

  std::size_t certain_steps() const { return static_cast<std::size_t>(std::min(a_end - a, b_end - b)); }

  HWY_INLINE void step() {
    const One d;
    const std::uint16_t i = *a, j = *b;
    const bool take_a = i <= j, take_b = j <= i;
    const auto x = hn::And(hn::LoadU(d, a_lanes), all_bits_if(take_a));
    const auto y = hn::And(Format::load(d, b_values), all_bits_if(take_b));
    *out++ = take_a ? i : j;
    hn::StoreU(combine<op>(d, x, y), d, out_lanes++);
    a += take_a, a_lanes += take_a, b += take_b, b_values += take_b;
  }

  HWY_INLINE void finish() {
    const One d;
    while (certain_steps() > 0) step();
    for (; a != a_end; ++a) {
      *out++ = *a;
      hn::StoreU(combine<op>(d, hn::LoadU(d, a_lanes++), hn::Zero(d)), d, out_lanes++);
    }
    for (; b != b_end; ++b) {
      *out++ = *b;
      hn::StoreU(combine<op>(d, hn::Zero(d), Format::load(d, b_values++)), d, out_lanes++);
    }
  }
};

template <class Format, ReduceOp op>
struct Lists {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  using Side = SideMerge<Format, op == ReduceOp::avg ? ReduceOp::sum : op>;
  static constexpr std::size_t kSides = 4;

  static const std::byte* widen(const std::byte* values, std::size_t count, std::byte* lanes) noexcept {
    if constexpr (std::is_same_v<Element, Lane>) {
      return values;
    } else {
      const hn::CappedTag<Lane, 1> d;
      const auto* const from = reinterpret_cast<const Element*>(values);
      auto* const to = reinterpret_cast<Lane*>(lanes);
      for (std::size_t i = 0; i < count; ++i) hn::StoreU(Format::load(d, from + i), d, to + i);
      return lanes;
    }
  }

  static std::size_t merge(std::span<const std::uint16_t> a, const std::byte* a_lanes,
                           const ElementList& next, std::uint16_t* to_offsets, std::byte* to_lanes) noexcept {
    const std::span<const std::uint16_t> b = next.offsets;
    auto* const lanes = reinterpret_cast<Lane*>(to_lanes);
    std::array<Side, kSides> sides;
    std::array<std::size_t, kSides> begins;
    std::size_t a_begin = 0, b_begin = 0;
    for (std::size_t i = 0; i < kSides; ++i) {
      // The offsets are divided among the sides so that each has the same number of those in `a`.
      const std::size_t a_end = a.size() * (i + 1) / kSides;
      const auto b_at = a_end == a.size() ? b.end() : std::lower_bound(b.begin(), b.end(), a[a_end]);
      const auto b_end = static_cast<std::size_t>(b_at - b.begin());
      begins[i] = a_begin + b_begin;
      sides[i] = {a.data() + a_begin,
                  a.data() + a_end,
                  b.data() + b_begin,
                  b.data() + b_end,
                  reinterpret_cast<const Lane*>(a_lanes) + a_begin,
                  reinterpret_cast<const Element*>(next.values) + b_begin,
                  to_offsets + begins[i],
                  lanes + begins[i]};
      a_begin = a_end, b_begin = b_end;
    }
    for (;;) {
      std::size_t steps = sides[0].certain_steps();
      for (const Side& side : sides) steps = std::min(steps, side.certain_steps());
      if (steps == 0) break;
      for (; steps > 0; --steps) sides[0].step(), sides[1].step(), sides[2].step(), sides[3].step();
    }
    // Each side wrote where it would if no offset were in both lists. Where some are, there are gaps between
    // the sides' outputs, which are closed now.
    std::size_t end = 0;
    for (std::size_t i = 0; i < kSides; ++i) {
      sides[i].finish();
      const auto count = static_cast<std::size_t>(sides[i].out - (to_offsets + begins[i]));
      if (end != begins[i]) {
        std::memmove(to_offsets + end, to_offsets + begins[i], count * sizeof(std::uint16_t));
        std::memmove(lanes + end, lanes + begins[i], count * sizeof(Lane));
      }
      end += count;
    }
    return end;
  }

  static void finish(const std::byte* lanes, std::size_t count, int ranks, bool with_zero,
                     std::byte* packed) noexcept {
    const PackTag<Lane> d;
    const std::size_t n = hn::Lanes(d);
    const auto* from = reinterpret_cast<const Lane*>(lanes);
    auto* to = reinterpret_cast<Element*>(packed);
    const std::uint64_t skipped = with_zero ? ~std::uint64_t{0} : 0;
    for (; count >= n; count -= n, from += n, to += n)
      Format::store(d, finish_lanes<op>(d, hn::LoadU(d, from), bits_at(d, skipped, 0), ranks), to);
    if (count == 0) return;
    HWY_ALIGN_MAX Lane last[kWordElements] = {};
    HWY_ALIGN_MAX Element finished[kWordElements];
    std::memcpy(last, from, count * sizeof(Lane));
    Format::store(d, finish_lanes<op>(d, hn::LoadU(d, last), bits_at(d, skipped, 0), ranks), finished);
    std::memcpy(to, finished, count * sizeof(Element));
  }
};

template <class Format, ReduceOp op>
const ListKernels* kernels_of() {
  using Kernels = Lists<Format, op>;
  static constexpr ListKernels kKernels{.lane_bytes = sizeof(typename Format::Lane),
                                        .widen = &Kernels::widen,
                                        .merge = &Kernels::merge,
                                        .finish = &Kernels::finish};
  return &kKernels;
}

const ListKernels* select_lists(DataType type, ReduceOp op) {
  return by_type_and_op(type, op, []<class Format, ReduceOp kOp>() { return kernels_of<Format, kOp>(); });
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(select_lists);

const ListKernels* list_kernels(DataType type, ReduceOp op) noexcept {
  return HWY_DYNAMIC_DISPATCH(select_lists)(type, op);
}

ListSum::ListSum()
    : offset_memory_(new std::uint16_t[2 * kMostListed]),
      lane_memory_(new std::byte[2 * kMostListed * kMostLaneBytes]) {}

void ListSum::sum(DataType type, ReduceOp op, int ranks, std::span<const ElementList> lists) {
  kernels_ = list_kernels(type, op);
  ranks_ = ranks;
  with_zero_ = lists.size() < static_cast<std::size_t>(ranks);
  offsets_ = {};
  if (lists.empty()) return;
  // `next` is the half of the memory that is written next.
  std::size_t next = 0;
  const auto lanes_of = [this](std::size_t number) {
    return lane_memory_.get() + number * kMostListed * kMostLaneBytes;
  };
  offsets_ = lists.front().offsets;
  lanes_ = kernels_->widen(lists.front().values, offsets_.size(), lanes_of(next));
  if (lanes_ == lanes_of(next)) next = 1 - next;
  for (const ElementList& list : lists.subspan(1)) {
    assert(offsets_.size() + list.offsets.size() <= kMostListed);
    std::uint16_t* const to = offset_memory_.get() + next * kMostListed;
    offsets_ = {to, kernels_->merge(offsets_, lanes_, list, to, lanes_of(next))};
    lanes_ = lanes_of(next);
    next = 1 - next;
  }
}

void ListSum::emit(std::span<std::byte> packed) const {
  if (offsets_.empty()) return;
  kernels_->finish(lanes_, offsets_.size(), ranks_, with_zero_, packed.data());
}

}  // namespace nzcl
#endif  // HWY_ONCE
