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

#if NZCL_HAVE_AVX512
constexpr std::size_t kTurn = 16;
constexpr std::uint32_t kFarthest = (std::uint32_t{1} << 27) - 1;

/// A mask that the compiler keeps in a register, where it would make it anew for every turn.
HWY_INLINE __mmask16 kept_mask(__mmask16 mask) {
  asm("" : "+k"(mask));
  return mask;
}

/// Two vectors of kTurn numbers, one behind the other.
struct TwoVectors {
  __m512i low, high;
};

/// Merges two lists by vectors. Each turn has the next 16 entries of both, sorts them, and hands on those
/// that do not lie behind the last of the 16 of either list, because what follows does. So entries of the
/// same offset are in the same turn, unless `a` repeats offsets. Of each turn put(offsets, words, count) gets
/// two vectors of both, and the number of entries in them that count.
///
/// What is sorted are keys: the distance from the least offset of the turn, and in the lowest five bits which
/// of the 32 entries it is. Distances have 27 bits, so entries farther away are left to the turns to come.
/// The keys of `a` ascend and those of `b` descend, which a network of minima and maxima sorts in five steps.
template <bool kRepeats, class Put>
HWY_INLINE std::size_t merge_turns(const ListEntries& list_a, const ListEntries& list_b, const Put put) {
  const hn::CappedTag<std::uint32_t, kTurn> d;
  const __m512i numbers_of_a = hn::Load(d, kLaneNumbers).raw, farthest = _mm512_set1_epi32(kFarthest),
                numbers_of_b = _mm512_sub_epi32(_mm512_set1_epi32(2 * kTurn - 1), numbers_of_a),
                reversed = _mm512_sub_epi32(_mm512_set1_epi32(kTurn - 1), numbers_of_a);
  const auto step = [](__m512i keys, __m512i swapped, __mmask16 later) HWY_ATTR {
    return _mm512_mask_max_epu32(_mm512_min_epu32(keys, swapped), later, keys, swapped);
  };
  const __mmask16 later_half = kept_mask(0xff00), later_quarters = kept_mask(0xf0f0),
                  later_pairs = kept_mask(0xcccc), later_ones = kept_mask(0xaaaa);
  const auto sort = [&](__m512i keys) HWY_ATTR {
    keys = step(keys, _mm512_shuffle_i64x2(keys, keys, 0x4e), later_half);
    keys = step(keys, _mm512_shuffle_i64x2(keys, keys, 0xb1), later_quarters);
    keys = step(keys, _mm512_shuffle_epi32(keys, _MM_PERM_BADC), later_pairs);
    return step(keys, _mm512_shuffle_epi32(keys, _MM_PERM_CDAB), later_ones);
  };
  ListEntries a = list_a, b = list_b;
  std::size_t written = 0;
  // `kWhole`: whether both lists have as many entries as a turn takes. Otherwise what they lack is kNoOffset.
  const auto turn = [&]<bool kWhole>(std::bool_constant<kWhole>) HWY_ATTR {
    const auto at = [](const ListEntries& list, std::size_t i) {
      return kWhole || i < list.count ? list.offsets[i] : kNoOffset;
    };
    const auto load = [](const ListEntries& list, const void* from) HWY_ATTR {
      if constexpr (kWhole) return _mm512_loadu_si512(from);
      const auto there = static_cast<__mmask16>(low_bits(std::min(list.count, kTurn)));
      return _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), there, from);
    };
    // All of this is done in vectors, because compilers may make a branch of a minimum that nobody can
    // predict.
    const auto all = [](std::uint32_t number)
                         HWY_ATTR { return _mm512_set1_epi32(static_cast<int>(number)); };
    const auto least_of = [&](std::size_t i)
                              HWY_ATTR { return _mm512_min_epu32(all(at(a, i)), all(at(b, i))); };
    const __m512i from = least_of(0),
                  reach = _mm512_min_epu32(all(kFarthest - 1), _mm512_sub_epi32(all(kNoOffset - 1), from)),
                  last = _mm512_min_epu32(least_of(kTurn - 1), _mm512_add_epi32(from, reach));
    const __m512i x = load(a, a.offsets), y = load(b, b.offsets), v = load(a, a.words), w = load(b, b.words);
    const auto keys_of = [&](__m512i offsets, __m512i numbers) HWY_ATTR {
      const __m512i distances = _mm512_min_epu32(_mm512_sub_epi32(offsets, from), farthest);
      return _mm512_or_epi32(_mm512_slli_epi32(distances, 5), numbers);
    };
    const __m512i up = keys_of(x, numbers_of_a),
                  down = keys_of(_mm512_permutexvar_epi32(reversed, y), numbers_of_b);
    const __m512i low = sort(_mm512_min_epu32(up, down)), high = sort(_mm512_max_epu32(up, down));
    // Entries of `a` that have the last one's offset and are not in this turn come before that of `b`.
    const __m512i last_of_b =
        kRepeats && a.count > kTurn ? _mm512_min_epu32(last, all(a.offsets[kTurn] - 1)) : last;
    const std::size_t of_a = popcount(_mm512_cmple_epu32_mask(x, last)),
                      of_b = popcount(_mm512_cmple_epu32_mask(y, last_of_b));
    // Five bits of the keys are all that these permutations look at.
    written +=
        put(written, {_mm512_permutex2var_epi32(x, low, y), _mm512_permutex2var_epi32(x, high, y)},
            {_mm512_permutex2var_epi32(v, low, w), _mm512_permutex2var_epi32(v, high, w)}, of_a + of_b);
    a = a.part(of_a, a.count), b = b.part(of_b, b.count);
  };
  while (a.count >= kTurn && b.count >= kTurn) turn(std::true_type());
  while (a.count + b.count > 0) turn(std::false_type());
  return written;
}

/// Merges two lists, as below.
void merge_entries(const ListEntries& a, const ListEntries& b, std::uint32_t* offsets, std::uint32_t* words) {
  merge_turns<true>(a, b, [=](std::size_t at, TwoVectors o, TwoVectors w, std::size_t count) HWY_ATTR {
    _mm512_storeu_si512(offsets + at, o.low);
    _mm512_storeu_si512(offsets + at + kTurn, o.high);
    _mm512_storeu_si512(words + at, w.low);
    _mm512_storeu_si512(words + at + kTurn, w.high);
    return count;
  });
}
#else
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

/// Merges two lists. Of entries of the same offset those of `a` come first. There is room for kSpareEntries
/// behind the merged list, which overlaps neither.
void merge_entries(const ListEntries& a, const ListEntries& b, std::uint32_t* offsets, std::uint32_t* words) {
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
}
#endif

template <class Format, ReduceOp op>
struct Lists {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  static constexpr ReduceOp kCombined = op == ReduceOp::avg ? ReduceOp::sum : op;
  static constexpr bool kInWord = sizeof(Lane) == kWordBytes;
  static constexpr bool kCombines = kInWord && NZCL_HAVE_AVX512;
  using One = hn::CappedTag<Lane, 1>;
  using WordTag = hn::RebindToUnsigned<PackTag<Lane>>;

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

  static std::size_t merge(const ListEntries& a, const ListEntries& b, std::uint32_t* offsets,
                           std::uint32_t* words) noexcept {
#if NZCL_HAVE_AVX512
    if constexpr (kCombines) {
      return merge_pairs(a, b, 0, [=](std::size_t at, auto offset, auto sums, std::uint64_t bits) HWY_ATTR {
        const auto word = hn::BitCast(WordTag(), sums);
        hn::StoreU(pack_lanes(WordTag(), offset, bits), WordTag(), offsets + at);
        hn::StoreU(pack_lanes(WordTag(), word, bits), WordTag(), words + at);
        return popcount(bits);
      });
    }
#endif
    merge_entries(a, b, offsets, words);
    return a.count + b.count;
  }

#if NZCL_HAVE_AVX512
  /// Merges two lists, and combines entries of the same offset, of which there are two at most. Others, and
  /// the sums in `skipped`, are combined with the zero of the ranks that do not hold them. put(at, offsets,
  /// sums, bits) gets a vector of both and those lanes in it that count. It returns how many these are, and
  /// writes them from number `at` on.
  template <class Put>
  static HWY_INLINE std::size_t merge_pairs(const ListEntries& a, const ListEntries& b, std::uint32_t skipped,
                                            const Put put) {
    return merge_turns<false>(
        a, b, [=](std::size_t at, TwoVectors o, TwoVectors w, std::size_t count) HWY_ATTR {
          const auto behind = [](TwoVectors v) HWY_ATTR {
            return TwoVectors{_mm512_alignr_epi32(v.high, v.low, 1), _mm512_alignr_epi32(v.low, v.high, 1)};
          };
          const auto [next_low, next_high] = behind(o);
          const auto [more_low, more_high] = behind(w);
          const std::uint32_t same_low = _mm512_cmpeq_epi32_mask(o.low, next_low),
                              same_high = _mm512_cmpeq_epi32_mask(o.high, next_high);
          const std::uint64_t first = ~(std::uint64_t{same_low | same_high << 16} << 1) & low_bits(count);
          const std::size_t of_low =
              put(at, words_of(o.low), combined(w.low, more_low, same_low, skipped), first & 0xffff);
          return of_low + put(at + of_low, words_of(o.high), combined(w.high, more_high, same_high, skipped),
                              first >> 16);
        });
  }
  static HWY_INLINE hn::Vec<PackTag<Lane>> combined(__m512i word, __m512i next, std::uint32_t same,
                                                    std::uint32_t skipped) {
    const PackTag<Lane> d;
    auto v = hn::BitCast(d, words_of(word));
    v = hn::IfThenElse(to_mask(d, same),
                       nzcl::HWY_NAMESPACE::combine<kCombined>(d, v, hn::BitCast(d, words_of(next))), v);
    if constexpr (kZeroMatters<op, Lane>)
      v = hn::IfThenElse(to_mask(d, (~same | skipped) & 0xffff),
                         nzcl::HWY_NAMESPACE::combine<kCombined>(d, v, hn::Zero(d)), v);
    return v;
  }
  static HWY_INLINE hn::Vec<WordTag> words_of(__m512i raw) {
    hn::Vec<WordTag> words;
    words.raw = raw;
    return words;
  }

  static std::size_t merge_to(const ListEntries& a, const ListEntries& b, const ListUnion& to) noexcept {
    if constexpr (kCombines) {
      const std::uint32_t skipped = to.lists == static_cast<std::size_t>(to.ranks) ? 0 : 0xffff;
      return merge_pairs(a, b, skipped,
                         [to](std::size_t at, auto offsets, auto sums, std::uint64_t bits) HWY_ATTR {
                           return write(to, at, offsets, settle<op>(PackTag<Lane>(), sums, to.ranks), bits);
                         });
    }
    return 0;
  }
#endif

  static void combine(const ListEntries& merged, const std::byte* lanes, const ListUnion& to) noexcept {
    if constexpr (kCombines) {
      finish_words(merged, to);
    } else if constexpr (kInWord) {
      combine_words(merged, to);
    } else {
      auto* const packed = reinterpret_cast<Lane*>(to.packed);
      std::size_t put = 0;
      for (std::size_t i = 0; i < merged.count; ++put) {
        to.offsets[put] = merged.offsets[i] - to.base;
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

  /// Finishes entries that were combined when they were merged.
  static void finish_words(const ListEntries& merged, const ListUnion& to) {
    const std::uint64_t skipped = to.lists == static_cast<std::size_t>(to.ranks) ? 0 : ~std::uint64_t{0};
    const auto finish = [&](auto d, std::size_t i) HWY_ATTR {
      const hn::RebindToUnsigned<decltype(d)> du;
      const auto lanes = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(merged.words) + i);
      Format::store(d, finish_lanes<op>(d, hn::BitCast(d, lanes), bits_at(d, skipped, 0), to.ranks),
                    reinterpret_cast<Element*>(to.packed) + i);
      hn::StoreU(hn::Sub(hn::LoadU(du, merged.offsets + i), hn::Set(du, to.base)), du, to.offsets + i);
    };
    std::size_t i = 0;
    for (; i + hn::Lanes(PackTag<Lane>()) <= merged.count; i += hn::Lanes(PackTag<Lane>()))
      finish(PackTag<Lane>(), i);
    for (; i < merged.count; ++i) finish(One(), i);
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

  /// Writes those of a vector of results that are in `bits`, from number `at` of the union on. Returns how
  /// many these are.
  static HWY_INLINE std::size_t write(const ListUnion& to, std::size_t at, hn::Vec<WordTag> offsets,
                                      hn::Vec<PackTag<Lane>> sums, std::uint64_t bits) {
    const PackTag<Lane> d;
    const WordTag du;
    auto* const packed = reinterpret_cast<Element*>(to.packed) + at;
    const auto numbers = pack_lanes(du, hn::Sub(offsets, hn::Set(du, to.base)), bits);
    const auto results = pack_lanes(d, sums, bits);
    if (at + hn::Lanes(d) <= to.count) {
      hn::StoreU(numbers, du, to.offsets + at);
      Format::store(d, results, packed);
    } else {  // whole vectors would be written beyond the end
      std::uint32_t last_offsets[hn::MaxLanes(WordTag())];
      Element last[hn::MaxLanes(WordTag())];
      hn::StoreU(numbers, du, last_offsets);
      Format::store(d, results, last);
      std::copy_n(last_offsets, popcount(bits), to.offsets + at);
      std::memcpy(packed, last, popcount(bits) * sizeof(Element));
    }
    return popcount(bits);
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
      count += write(to, count, offsets, sums, bits_at(d, first, 0) & low_bits(entries));
    }

    template <class D>
    static HWY_INLINE hn::Vec<D> lanes_at(D d, const std::byte* words) {
      return hn::BitCast(d,
                         hn::LoadU(hn::RebindToUnsigned<D>(), reinterpret_cast<const std::uint32_t*>(words)));
    }
  };
};

template <class Kernels>
constexpr decltype(ListKernels::merge_to) merges_to_union() {
#if NZCL_HAVE_AVX512
  if constexpr (Kernels::kCombines) return &Kernels::merge_to;
#endif
  return nullptr;
}

template <class Format, ReduceOp op>
const ListKernels* kernels_of() {
  using Kernels = Lists<Format, op>;
  static constexpr ListKernels kKernels{.enter = &Kernels::enter,
                                        .merge = &Kernels::merge,
                                        .merge_to = merges_to_union<Kernels>(),
                                        .combine = &Kernels::combine};
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

void ListSum::start(DataType type, ReduceOp op, int ranks, std::uint32_t base) {
  kernels_ = list_kernels(type, op);
  ranks_ = ranks;
  base_ = base;
  lists_ = 0;
  entries_ = last_ = {};
}

void ListSum::add(const ElementList& list) {
  const std::size_t count = list.offsets.size();
  if (count == 0) return;
  merge_last();
  const std::size_t before = entries_.count;
  assert(before + count <= kMostListed && lists_ < kMostLists);
  std::uint32_t* const words = lists_ == 0 ? first_.get() : further_.get();
  const ListEntries entered{list.offsets.data(), kernels_->enter(list, before, lanes_.get(), words), count};
  (lists_++ == 0 ? entries_ : last_) = entered;
}

void ListSum::merge_last() {
  if (last_.count == 0) return;
  const std::size_t merged = kernels_->merge(entries_, last_, spare_.offsets.get(), spare_.words.get());
  std::swap(merged_, spare_);
  entries_ = {merged_.offsets.get(), reinterpret_cast<const std::byte*>(merged_.words.get()), merged};
  last_ = {};
}

std::size_t ListSum::unite() {
  merge_last();
  united_ = kernels_->merge_to != nullptr
                ? entries_.count
                : HWY_DYNAMIC_DISPATCH(count_offsets)({entries_.offsets, entries_.count});
  return united_;
}

std::size_t ListSum::unite_later() {
  if (kernels_->merge_to == nullptr) return unite();
  return united_ = entries_.count + last_.count;
}

std::size_t ListSum::emit(std::byte* packed, std::uint32_t* offsets) {
  const ListUnion to{.lists = lists_,
                     .ranks = ranks_,
                     .base = base_,
                     .count = united_,
                     .offsets = offsets,
                     .packed = packed};
  if (last_.count > 0) return kernels_->merge_to(entries_, last_, to);
  if (entries_.count > 0) kernels_->combine(entries_, lanes_.get(), to);
  return united_;
}

}  // namespace nzcl
#endif  // HWY_ONCE
