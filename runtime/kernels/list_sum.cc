#include "runtime/kernels/list_sum.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "runtime/base/bitmap.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/list_sum.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

constexpr std::size_t kWordBytes = sizeof(std::uint32_t);
constexpr std::uint32_t kNoOffset = 0xffffffff;

/// Returns how many offsets differ from the one before.
std::size_t count_offsets(std::span<const std::uint32_t> offsets) {
  if (offsets.empty()) return 0;
  const hn::ScalableTag<std::uint32_t> d;
  const std::uint32_t* const at = offsets.data();
  std::size_t same = 0, i = 1;
  for (; i + hn::Lanes(d) <= offsets.size(); i += hn::Lanes(d))
    same += hn::CountTrue(d, hn::Eq(hn::LoadU(d, at + i - 1), hn::LoadU(d, at + i)));
  for (; i < offsets.size(); ++i) same += at[i - 1] == at[i];
  return offsets.size() - same;
}

/// One of several merges whose steps alternate. Which list has the next offset cannot be predicted, so a step
/// has no branch. But it must wait for the result of the step before it; while it waits, the CPU executes the
/// steps of the other merges. All have made as many steps, so each only knows how many entries of `a` it has
/// taken: the fewer numbers a loop changes, the more of them stay in registers.
struct SideMerge {
  ListEntries a, b;
  std::uint32_t *offsets, *words;  // of the merged list
  std::size_t taken = 0;           // of a

  std::size_t certain_steps(std::size_t steps) const {
    return std::min(a.count - taken, b.count + taken - steps);
  }
  HWY_INLINE void step(std::size_t number, std::size_t& of_a) const {
    const std::size_t of_b = number - of_a;
    const std::uint32_t x = a.offsets[of_a], y = b.offsets[of_b], v = a.word(of_a), w = b.word(of_b);
    const bool takes_a = x <= y;  // of equal offsets first that of the earlier list
    offsets[number] = takes_a ? x : y;
    words[number] = takes_a ? v : w;
    of_a += takes_a;
  }
  void finish(std::size_t steps) {
    while (certain_steps(steps) > 0) step(steps++, taken);
    const std::size_t left = a.count - taken;
    copy_from(a, taken, steps);
    copy_from(b, steps - taken, steps + left);
  }
  void copy_from(const ListEntries& list, std::size_t from, std::size_t to) const {
    std::copy_n(list.offsets + from, list.count - from, offsets + to);
    std::memcpy(words + to, list.words + from * kWordBytes, (list.count - from) * kWordBytes);
  }
};

#if NZCL_HAVE_AVX512
/// Merges what it can by vectors: in each turn those of 16 entries of each list that do not lie behind the
/// last of the other 16. Counts for each entry of `a` those of `b` that come before it. So it knows the
/// places of both in the merged list, to which they are expanded. Returns how many entries it has merged.
std::size_t merge_vectors(SideMerge& side) {
  constexpr std::size_t kTurn = 16;
  const hn::CappedTag<std::uint32_t, kTurn> d;
  const __m512i one = _mm512_set1_epi32(1), numbers = hn::Load(d, kLaneNumbers).raw;
  const auto up_to = [](std::uint32_t last, __m512i offsets) HWY_ATTR {
    return popcount(_mm512_cmple_epu32_mask(offsets, _mm512_set1_epi32(static_cast<int>(last))));
  };
  // Writes the next words of either to the lanes in `bits`, and those of the other to the rest.
  const auto put = [](std::uint32_t bits, __m512i of_set, __m512i of_others, std::uint32_t* to) HWY_ATTR {
    const auto set = static_cast<__mmask16>(bits), others = static_cast<__mmask16>(~bits);
    _mm512_storeu_si512(to,
                        _mm512_mask_expand_epi32(_mm512_maskz_expand_epi32(set, of_set), others, of_others));
  };
  std::size_t i = 0, j = 0;
  while (i + 2 * kTurn <= side.a.count && j + 2 * kTurn <= side.b.count) {
    const std::uint32_t *const a = side.a.offsets + i, *const b = side.b.offsets + j;
    const std::byte *const v = side.a.words + i * kWordBytes, *const w = side.b.words + j * kWordBytes;
    std::uint32_t *const offsets = side.offsets + i + j, *const words = side.words + i + j;
    const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    // A binary search. Its last step is made twice, because 16 entries have 17 places around them.
    __m512i before = _mm512_setzero_si512();
    const auto search = [&](int probe, int step) HWY_ATTR {
      const __m512i probed = _mm512_permutexvar_epi32(_mm512_add_epi32(before, _mm512_set1_epi32(probe)), y);
      before =
          _mm512_mask_add_epi32(before, _mm512_cmplt_epu32_mask(probed, x), before, _mm512_set1_epi32(step));
    };
    search(7, 8), search(3, 4), search(1, 2), search(0, 1), search(0, 1);
    const auto of_a = static_cast<std::uint32_t>(
        _mm512_reduce_or_epi32(_mm512_sllv_epi32(one, _mm512_add_epi32(before, numbers))));
    put(of_a, x, y, offsets);
    put(of_a, _mm512_loadu_si512(v), _mm512_loadu_si512(w), words);
    const std::size_t m = popcount(of_a & 0xffff), n = kTurn - m;
    put(of_a >> kTurn, _mm512_loadu_si512(a + m), _mm512_loadu_si512(b + n), offsets + kTurn);
    put(of_a >> kTurn, _mm512_loadu_si512(v + m * kWordBytes), _mm512_loadu_si512(w + n * kWordBytes),
        words + kTurn);
    const std::uint32_t last = std::min(a[kTurn - 1], b[kTurn - 1]);
    i += up_to(last, x);
    // Entries of `a` that have the last one's offset and are not in this turn come before that of `b`.
    j += up_to(std::min(last, a[kTurn] - 1), y);
  }
  side.taken = i;
  return i + j;
}
#endif

/// Merges two lists. There is room for kSpareEntries behind the merged one, which overlaps neither.
void merge_entries(const ListEntries& a, const ListEntries& b, std::uint32_t* offsets, std::uint32_t* words) {
#if NZCL_HAVE_AVX512
  SideMerge whole{a, b, offsets, words};
  whole.finish(merge_vectors(whole));
#else
  constexpr std::size_t kSides = 4;
  std::array<SideMerge, kSides> sides;
  std::size_t a_begin = 0, b_begin = 0;
  for (std::size_t i = 0; i < kSides; ++i) {
    // The entries are divided among the sides so that each has the same number of those in `a`.
    const std::size_t a_end = a.count * (i + 1) / kSides;
    const std::uint32_t* const b_last = b.offsets + b.count;
    const auto b_end = static_cast<std::size_t>(
        (a_end == a.count ? b_last : std::lower_bound(b.offsets, b_last, a.offsets[a_end])) - b.offsets);
    sides[i] = {a.part(a_begin, a_end), b.part(b_begin, b_end), offsets + a_begin + b_begin,
                words + a_begin + b_begin};
    a_begin = a_end, b_begin = b_end;
  }
  auto& [s0, s1, s2, s3] = sides;
  std::size_t step = 0;
  for (;;) {
    std::size_t certain = s0.certain_steps(step);
    for (const SideMerge& side : sides) certain = std::min(certain, side.certain_steps(step));
    if (certain == 0) break;
    std::size_t t0 = s0.taken, t1 = s1.taken, t2 = s2.taken, t3 = s3.taken;
    for (const std::size_t end = step + certain; step < end; ++step) {
      s0.step(step, t0);
      s1.step(step, t1);
      s2.step(step, t2);
      s3.step(step, t3);
    }
    s0.taken = t0, s1.taken = t1, s2.taken = t2, s3.taken = t3;
  }
  for (SideMerge& side : sides) side.finish(step);
#endif
}

template <class Format, ReduceOp op>
struct Lists {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  static constexpr ReduceOp kCombined = op == ReduceOp::avg ? ReduceOp::sum : op;
  static constexpr bool kInWord = sizeof(Lane) == kWordBytes;
  using One = hn::CappedTag<Lane, 1>;

  static const std::byte* enter(const ElementList& list, std::size_t before, std::byte* lanes,
                                std::uint32_t* words) noexcept {
    const std::size_t count = list.offsets.size();
    if constexpr (!kInWord) {
      static_assert(std::is_same_v<Element, Lane>);
      std::memcpy(lanes + before * sizeof(Lane), list.values, count * sizeof(Lane));
      std::iota(words, words + count, static_cast<std::uint32_t>(before));
    } else if constexpr (std::is_same_v<Element, Lane>) {
      return list.values;
    } else {
      widen(reinterpret_cast<const Element*>(list.values), count, reinterpret_cast<Lane*>(words));
    }
    return reinterpret_cast<const std::byte*>(words);
  }

  static void widen(const Element* values, std::size_t count, Lane* to) {
    const hn::ScalableTag<Lane> d;
    std::size_t i = 0;
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) hn::StoreU(Format::load(d, values + i), d, to + i);
    for (; i < count; ++i) hn::StoreU(Format::load(One(), values + i), One(), to + i);
  }

  static void combine(const ListEntries& merged, const std::byte* lanes, const ListUnion& to) noexcept {
    if constexpr (kInWord) {
      combine_words(merged, to);
    } else {
      auto* const packed = reinterpret_cast<Lane*>(to.packed);
      std::size_t put = 0;
      for (std::size_t i = 0; i < merged.count; ++put) {
        to.offsets[put] = merged.offsets[i];
        i += put_one(merged, i, reinterpret_cast<const Lane*>(lanes), to.ranks, packed + put);
      }
    }
  }

  /// Puts the element of entry `i`, and returns how many entries it has.
  static HWY_INLINE std::size_t put_one(const ListEntries& merged, std::size_t i, const Lane* lanes,
                                        int ranks, Lane* to) {
    auto sum = hn::LoadU(One(), lanes + merged.word(i));
    std::size_t held = 1;
    for (; i + held < merged.count && merged.offsets[i + held] == merged.offsets[i]; ++held)
      sum = nzcl::HWY_NAMESPACE::combine<kCombined>(One(), sum,
                                                    hn::LoadU(One(), lanes + merged.word(i + held)));
    const std::uint64_t skipped = held < static_cast<std::size_t>(ranks) ? 1 : 0;
    hn::StoreU(finish_lanes<op>(One(), sum, skipped, ranks), One(), to);
    return held;
  }

  /// Does a vector of entries at a time, and those at the end, behind which nothing may be read, in a copy
  /// with entries behind them that are not there.
  static void combine_words(const ListEntries& merged, const ListUnion& to) {
    Combiner combiner{.to = to};
    const std::size_t step = hn::Lanes(PackTag<Lane>()), read = step + to.lists - 1;
    std::size_t i = 0;
    for (; i + read <= merged.count; i += step)
      combiner.put(merged.offsets + i, merged.words + i * kWordBytes, step);
    constexpr std::size_t kMost = 2 * (hn::MaxLanes(PackTag<Lane>()) + kMostLists);
    std::uint32_t offsets[kMost];
    Lane words[kMost] = {};
    const std::size_t left = merged.count - i;
    std::fill(std::copy_n(merged.offsets + i, left, offsets), std::end(offsets), kNoOffset);
    std::memcpy(words, merged.words + i * kWordBytes, left * kWordBytes);
    for (std::size_t j = 0; j < left; j += step)
      combiner.put(offsets + j, reinterpret_cast<const std::byte*>(words + j), std::min(step, left - j));
  }

  /// Combines entries of the same offset and writes the results, a vector of entries at a time.
  struct Combiner {
    const ListUnion& to;
    std::size_t count = 0;    // of offsets that are written
    std::uint64_t again = 0;  // 1 if the next entry has the offset of the one before

    /// Does so many entries. As many more are read as other lists may have the last one's offset.
    HWY_INLINE void put(const std::uint32_t* at, const std::byte* words, std::size_t entries) {
      const PackTag<Lane> d;
      const hn::RebindToUnsigned<decltype(d)> du;
      const std::size_t step = hn::Lanes(d);
      const auto offsets = hn::LoadU(du, at);
      auto sums = lanes_at(d, words);
      std::uint64_t same = 0, first = ~again;
      for (std::size_t list = 1; list < to.lists; ++list) {
        const auto mask = hn::Eq(offsets, hn::LoadU(du, at + list));
        same = to_bits(du, mask);
        if (list == 1) first = ~(same << 1 | again), again = same >> (step - 1) & 1;
        const auto more =
            nzcl::HWY_NAMESPACE::combine<kCombined>(d, sums, lanes_at(d, words + list * kWordBytes));
        sums = hn::IfThenElse(hn::RebindMask(d, mask), more, sums);
      }
      if (to.lists == 1) same = ~std::uint64_t{0};
      const std::uint64_t held_by_all = to.lists == static_cast<std::size_t>(to.ranks) ? same : 0;
      sums = finish_lanes<op>(d, sums, bits_at(d, ~held_by_all, 0), to.ranks);
      write(du, offsets, sums, bits_at(d, first, 0) & low_bits(entries));
    }

    template <class D, class V, class Lanes>
    HWY_INLINE void write(D du, V offsets, Lanes sums, std::uint64_t bits) {
      const PackTag<Lane> d;
      auto* const packed = reinterpret_cast<Element*>(to.packed) + count;
      const auto numbers = pack_lanes(du, offsets, bits);
      const auto results = pack_lanes(d, sums, bits);
      if (count + hn::Lanes(d) <= to.count) {
        hn::StoreU(numbers, du, to.offsets + count);
        Format::store(d, results, packed);
      } else {  // whole vectors would be written beyond the end
        std::uint32_t last_offsets[hn::MaxLanes(D())];
        Element last[hn::MaxLanes(D())];
        hn::StoreU(numbers, du, last_offsets);
        Format::store(d, results, last);
        std::copy_n(last_offsets, popcount(bits), to.offsets + count);
        std::memcpy(packed, last, popcount(bits) * sizeof(Element));
      }
      count += popcount(bits);
    }

    template <class D>
    static HWY_INLINE hn::Vec<D> lanes_at(D d, const std::byte* words) {
      return hn::BitCast(d,
                         hn::LoadU(hn::RebindToUnsigned<D>(), reinterpret_cast<const std::uint32_t*>(words)));
    }
  };
};

template <class Format, ReduceOp op>
const ListKernels* kernels_of() {
  using Kernels = Lists<Format, op>;
  static constexpr ListKernels kKernels{.enter = &Kernels::enter, .combine = &Kernels::combine};
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
HWY_EXPORT(merge_entries);
HWY_EXPORT(count_offsets);

const ListKernels* list_kernels(DataType type, ReduceOp op) noexcept {
  return HWY_DYNAMIC_DISPATCH(select_lists)(type, op);
}

ListSum::Merged::Merged()
    : offsets(new std::uint32_t[kMostListed + kSpareEntries]),
      words(new std::uint32_t[kMostListed + kSpareEntries]) {}

ListSum::ListSum()
    : first_(new std::uint32_t[kMostListed]),
      further_(new std::uint32_t[kMostListed]),
      lanes_(new std::byte[kMostListed * kMostLaneBytes]) {}

void ListSum::start(DataType type, ReduceOp op, int ranks) {
  kernels_ = list_kernels(type, op);
  ranks_ = ranks;
  lists_ = 0;
  entries_ = {};
}

void ListSum::add(const ElementList& list) {
  const std::size_t before = entries_.count, count = list.offsets.size();
  assert(before + count <= kMostListed && lists_ < kMostLists);
  std::uint32_t* const words = lists_ == 0 ? first_.get() : further_.get();
  const ListEntries entered{list.offsets.data(), kernels_->enter(list, before, lanes_.get(), words), count};
  if (lists_++ == 0) {
    entries_ = entered;
    return;
  }
  HWY_DYNAMIC_DISPATCH(merge_entries)(entries_, entered, spare_.offsets.get(), spare_.words.get());
  std::swap(merged_, spare_);
  entries_ = {merged_.offsets.get(), reinterpret_cast<const std::byte*>(merged_.words.get()), before + count};
}

std::size_t ListSum::unite() {
  united_ = HWY_DYNAMIC_DISPATCH(count_offsets)({entries_.offsets, entries_.count});
  return united_;
}

void ListSum::emit(std::byte* packed, std::uint32_t* offsets) {
  if (entries_.count == 0) return;
  kernels_->combine(
      entries_, lanes_.get(),
      {.lists = lists_, .ranks = ranks_, .count = united_, .offsets = offsets, .packed = packed});
}

}  // namespace nzcl
#endif  // HWY_ONCE
