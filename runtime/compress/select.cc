#include "runtime/compress/select.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/compress/select.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/compress/random-inl.h"
#include "runtime/kernels/offsets-inl.h"
#include "runtime/kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

using compress::Bins;
using compress::kInfinityBits;
using compress::MagnitudeBits;
using compress::Rule;
using compress::Selected;
using compress::SliceData;

using Floats = PackTag<float>;  // what is selected is packed
using SingleFloat = hn::CappedTag<float, 1>;

template <class D>
using Ints = hn::RebindToSigned<D>;

/// The bits of |v|. They are below 2^31, so they can be compared as signed integers, for which every
/// instruction set has an instruction.
template <class D>
HWY_INLINE hn::Vec<Ints<D>> magnitude(D d, hn::Vec<D> v) {
  const Ints<D> di;
  (void)d;
  return hn::And(hn::BitCast(di, v), hn::Set(di, 0x7fffffff));
}

/// x (see SliceData) of the elements at `gradient`.
template <bool kMomentum, class D>
HWY_INLINE hn::Vec<D> x_at(D d, const SliceData& s, const float* gradient, const float* velocity) {
  const auto scaled = hn::Mul(hn::LoadU(d, gradient), hn::Set(d, s.factor));
  if constexpr (kMomentum) return hn::Add(scaled, hn::Mul(hn::LoadU(d, velocity), hn::Set(d, s.momentum)));
  return scaled;
}

/// |G| of the elements from `at` on.
template <bool kMomentum, class D>
HWY_INLINE hn::Vec<Ints<D>> magnitude_at(D d, const SliceData& s, std::size_t at) {
  const auto x = x_at<kMomentum>(d, s, s.gradient + at, kMomentum ? s.velocity + at : nullptr);
  return magnitude(d, hn::Add(hn::LoadU(d, s.residual + at), x));
}

/// How far ahead of the selection gradient and residual are prefetched, in bytes. Where the maxima of bins
/// are measured first, the elements that are selected now are in the cache already, and the prefetch fetches
/// those of the next bins.
constexpr std::size_t kAhead = 4 * kPrefetchBytes;

// ---- Rules. selects() says which of the elements from number `first` on are sent. It is called for one
// vector after the other, from the first word of the pass on.

/// threshold - 1 in every lane: what is greater than it is at least the threshold. Comparisons with "greater"
/// are those that all instruction sets have.
template <class D>
HWY_INLINE hn::Vec<Ints<D>> just_below(D, MagnitudeBits threshold) {
  return hn::Set(Ints<D>(), static_cast<std::int32_t>(threshold) - 1);
}

struct ThresholdRule {
  explicit ThresholdRule(const Rule& rule) : threshold(rule.threshold) {}
  void seek(std::size_t) {}
  template <class D>
  HWY_INLINE hn::Mask<Ints<D>> selects(D d, std::uint32_t, hn::Vec<D> total, hn::Vec<D>) const {
    return hn::Gt(magnitude(d, total), just_below(d, threshold));
  }
  MagnitudeBits threshold;
};

/// Compares with the threshold of the element's bin: |G|, or |G + x| with kTwice, as AdaComp does.
template <bool kTwice>
class BinRule {
 public:
  BinRule(const Bins& bins, std::span<const MagnitudeBits> thresholds)
      : ends_(bins.ends.data()), last_(bins.ends.size() - 1), thresholds_(thresholds.data()) {}
  /// Starts with the bin of this element.
  void seek(std::size_t first) {
    bin_ = static_cast<std::size_t>(std::upper_bound(ends_, ends_ + last_, first) - ends_);
    end_ = ends_[bin_];
  }
  template <class D>
  HWY_INLINE hn::Mask<Ints<D>> selects(D d, std::uint32_t first, hn::Vec<D> total, hn::Vec<D> x) {
    const Ints<D> di;
    const auto compared = kTwice ? hn::Add(total, x) : total;
    const auto reaches = hn::Gt(magnitude(d, compared), next(d, first));
    return hn::And(reaches, hn::Gt(magnitude(d, total), hn::Zero(di)));
  }

 private:
  /// The thresholds of these elements less 1. Bins are of any length, so each may end within a vector.
  template <class D>
  HWY_INLINE hn::Vec<Ints<D>> next(D d, std::uint32_t first) {
    const Ints<D> di;
    const hn::RebindToUnsigned<D> du;
    const auto end = first + static_cast<std::uint32_t>(hn::Lanes(d));
    auto row = just_below(d, thresholds_[bin_]);
    while (end_ <= end && bin_ < last_) {
      const auto behind = hn::Gt(hn::BitCast(di, numbers_from(du, first)), just_below(d, end_));
      row = hn::IfThenElse(behind, just_below(d, thresholds_[++bin_]), row);
      end_ = ends_[bin_];
    }
    return row;
  }

  const std::uint32_t* ends_;
  std::size_t last_;  // bin
  const MagnitudeBits* thresholds_;
  std::size_t bin_ = 0;    // that of the next element
  std::uint32_t end_ = 0;  // where it ends
};

struct RandomRule {
  explicit RandomRule(const Rule& rule) : key(rule.key), draw_below(rule.draw_below) {}
  void seek(std::size_t) {}
  template <class D>
  HWY_INLINE hn::Mask<Ints<D>> selects(D d, std::uint32_t first, hn::Vec<D> total, hn::Vec<D>) const {
    const hn::RebindToUnsigned<D> du;
    const Ints<D> di;
    const auto number = numbers_from(du, first);
    // Hashes are unsigned, and the comparison is signed. With the upper bit flipped on both sides, it gives
    // the order of the unsigned numbers.
    const auto flip = hn::Set(di, std::numeric_limits<std::int32_t>::min());
    const auto drawn = hn::Xor(hn::BitCast(di, hash_lanes(du, key, number)), flip);
    const auto last = static_cast<std::int32_t>(static_cast<std::uint32_t>(draw_below - 1) ^ 0x80000000u);
    const auto bad = hn::Gt(magnitude(d, total), just_below(d, kInfinityBits));
    if (draw_below == 0) return bad;
    return hn::Or(hn::Not(hn::Gt(drawn, hn::Set(di, last))), bad);
  }
  std::uint64_t key, draw_below;
};

// ---- The pass

/// The pointers to the 64 elements of a word.
struct WordData {
  const float* gradient;
  float* residual;
  float* velocity;
};

/// Which elements of a word are selected, and which reach the lower threshold.
struct WordBits {
  std::uint64_t selected = 0, lower = 0;
};

/// A pass over the words of a slice, in groups. A group is handled in one of two ways, whichever suited the
/// group before it: where few elements are selected they are listed one by one, and where many are, by moving
/// lanes. Neither has a branch that depends on the elements of a single word, because that would be
/// mispredicted wherever about half of the words have one.
template <bool kMomentum, bool kCountLower, class R>
struct Pass {
  static constexpr std::size_t kGroupWords = 32;
  /// With more selected elements per word, moving all lanes takes less time than one element after the other.
  static constexpr std::size_t kManyPerWord =
      hn::MaxLanes(Floats()) >= 16 ? 2 : (hn::MaxLanes(Floats()) >= 8 ? 4 : 16);

  const SliceData& slice;
  R rule;
  const MagnitudeBits lower;
  std::uint16_t* offsets;
  float* values;
  Selected selected;
  bool many = false;  // the group before had more than kManyPerWord

  WordData data(std::size_t word) const {
    const std::size_t at = word * kWordElements;
    return {slice.gradient + at, slice.residual + at, kMomentum ? slice.velocity + at : nullptr};
  }

  /// The words [first, last).
  HWY_INLINE void words(std::size_t first, std::size_t last) {
    const std::size_t whole = std::min(last, slice.elements / kWordElements);
    for (std::size_t word = first; word < whole; word += kGroupWords) {
      const std::size_t end = std::min(whole, word + kGroupWords), before = selected.count;
      many ? move(word, end) : list(word, end);
      many = selected.count - before > kManyPerWord * (end - word);
    }
    if (last > whole) partial(whole);
  }

  HWY_INLINE void prefetch(const WordData& w) const {
    prefetch_to_read(reinterpret_cast<const std::byte*>(w.gradient) + kAhead, 256);
    prefetch_to_write(reinterpret_cast<std::byte*>(w.residual) + kAhead, 256);
  }

  /// Adds x to the residual in the vectors of one word, which begins with element `first` of the slice, and
  /// calls each(lane, number of the first element, x, G, mask of the selected ones). Returns how many reach
  /// the lower threshold, one bit for each.
  template <class Each>
  HWY_INLINE std::uint64_t accumulate(const WordData& w, std::size_t first, Each each) {
    const Floats d;
    const Ints<Floats> di;
    std::uint64_t reach_lower = 0;
    for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
      const auto x = x_at<kMomentum>(d, slice, w.gradient + lane, kMomentum ? w.velocity + lane : nullptr);
      const auto total = hn::Add(hn::LoadU(d, w.residual + lane), x);
      const auto number = static_cast<std::uint32_t>(first + lane);
      each(lane, number, x, total, rule.selects(d, number, total, x));
      if constexpr (kCountLower)
        reach_lower |= to_bits(di, hn::Gt(magnitude(d, total), just_below(d, lower))) << lane;
    }
    return reach_lower;
  }

  /// Keeps G and x of all elements of a word, the selected ones too.
  HWY_INLINE WordBits keep_all(const WordData& w, std::size_t first) {
    const Floats d;
    const Ints<Floats> di;
    WordBits bits;
    bits.lower =
        accumulate(w, first, [&](std::size_t lane, std::uint32_t, auto x, auto total, auto mask) HWY_ATTR {
          hn::StoreU(total, d, w.residual + lane);
          if constexpr (kMomentum) hn::StoreU(x, d, w.velocity + lane);
          bits.selected |= to_bits(di, mask) << lane;
        });
    return bits;
  }

  /// For few selected elements in the whole words [first, last), at most kGroupWords: G of all of them is
  /// computed and compared first, and then what is selected is listed while it is in the first-level cache.
  HWY_INLINE void list(std::size_t first, std::size_t last) {
    std::uint64_t bits[kGroupWords];
    std::uint64_t nonzero = 0;
    for (std::size_t word = first; word < last; ++word) {
      const WordData w = data(word);
      prefetch(w);
      const WordBits found = keep_all(w, word * kWordElements);
      if constexpr (kCountLower) selected.count_lower += popcount(found.lower);
      bits[word - first] = found.selected;
      nonzero |= std::uint64_t{found.selected != 0} << (word - first);
    }
    std::size_t at = selected.count;
    for (; nonzero != 0; nonzero &= nonzero - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(nonzero));
      // This may write beyond the word's own offsets, but not beyond the room for its elements.
      write_offsets(bits[i], first + i, offsets + at);
      at += popcount(bits[i]);
    }
    take(at);
  }

  /// Takes the values of the elements that are listed up to number `last`, and sets them to zero.
  HWY_INLINE void take(std::size_t last) {
    for (; selected.count < last; ++selected.count) {
      const std::uint16_t offset = offsets[selected.count];
      values[selected.count] = slice.residual[offset];
      slice.residual[offset] = 0;
      if constexpr (kMomentum) slice.velocity[offset] = 0;
    }
  }

  /// For many selected elements in the whole words [first, last): moves the lanes of each vector together
  /// that are selected. All lanes are written, which is not beyond the room for the elements of the vector.
  HWY_INLINE void move(std::size_t first, std::size_t last) {
    const Floats d;
    const Ints<Floats> di;
    std::uint16_t* const to_offsets = offsets;
    float* const to_values = values;
    std::size_t at = selected.count;
    for (std::size_t word = first; word < last; ++word) {
      const WordData w = data(word);
      prefetch(w);
      const std::uint64_t found =
          accumulate(w, word * kWordElements,
                     [&](std::size_t lane, std::uint32_t number, auto x, auto total, auto mask) HWY_ATTR {
                       const auto left_out = hn::RebindMask(d, mask);
                       hn::StoreU(hn::IfThenZeroElse(left_out, total), d, w.residual + lane);
                       if constexpr (kMomentum)
                         hn::StoreU(hn::IfThenZeroElse(left_out, x), d, w.velocity + lane);
                       const std::uint64_t bits = to_bits(di, mask);
                       hn::StoreU(pack_lanes(d, total, bits), d, to_values + at);
                       const hn::RebindToUnsigned<Floats> du;
                       store_u16(du, pack_lanes(du, numbers_from(du, number), bits), to_offsets + at);
                       at += popcount(bits);
                     });
      if constexpr (kCountLower) selected.count_lower += popcount(found);
    }
    selected.count = at;
  }

  /// The word in which the slice ends. It is handled in copies that are filled up with zeros, because vectors
  /// would read and write behind the slice's end.
  void partial(std::size_t word) {
    const std::size_t at = word * kWordElements, rest = slice.elements - at;
    float gradient[kWordElements] = {}, residual[kWordElements] = {}, velocity[kWordElements] = {};
    std::memcpy(gradient, slice.gradient + at, rest * sizeof(float));
    std::memcpy(residual, slice.residual + at, rest * sizeof(float));
    if constexpr (kMomentum) std::memcpy(velocity, slice.velocity + at, rest * sizeof(float));
    const WordBits found = keep_all({gradient, residual, velocity}, at);
    std::memcpy(slice.residual + at, residual, rest * sizeof(float));
    if constexpr (kMomentum) std::memcpy(slice.velocity + at, velocity, rest * sizeof(float));
    if constexpr (kCountLower) selected.count_lower += popcount(found.lower & low_bits(rest));
    std::size_t last = selected.count;
    for (std::uint64_t left = found.selected & low_bits(rest); left != 0; left &= left - 1)
      offsets[last++] = static_cast<std::uint16_t>(at + std::size_t(std::countr_zero(left)));
    take(last);
  }
};

template <bool kMomentum, bool kCountLower, class R>
Selected run(const SliceData& s, R rule, MagnitudeBits lower, std::size_t first, std::size_t last,
             std::uint16_t* offsets, float* values) {
  Pass<kMomentum, kCountLower, R> pass{s, rule, lower, offsets, values, {}};
  pass.rule.seek(first * kWordElements);
  pass.words(first, last);
  return pass.selected;
}

template <bool kMomentum>
Selected select_with(const SliceData& s, const Rule& rule, std::size_t first, std::size_t last,
                     std::uint16_t* offsets, float* values) {
  switch (rule.kind) {
    case Rule::Kind::threshold:
      if (rule.lower_threshold != 0)
        return run<kMomentum, true>(s, ThresholdRule(rule), rule.lower_threshold, first, last, offsets,
                                    values);
      return run<kMomentum, false>(s, ThresholdRule(rule), 0, first, last, offsets, values);
    case Rule::Kind::bin_threshold:
      return run<kMomentum, false>(s, BinRule<false>(rule.bins, rule.bin_thresholds), 0, first, last, offsets,
                                   values);
    case Rule::Kind::random:
      return run<kMomentum, false>(s, RandomRule(rule), 0, first, last, offsets, values);
  }
  return {};
}

Selected select_any(const SliceData& s, const Rule& rule, std::size_t first, std::size_t last,
                    std::uint16_t* offsets, float* values) {
  return s.velocity != nullptr ? select_with<true>(s, rule, first, last, offsets, values)
                               : select_with<false>(s, rule, first, last, offsets, values);
}

// ---- Maxima of bins

/// The largest of each(d, i) in a bin, where each gives the magnitudes of the elements from i on.
template <class Each>
HWY_INLINE std::int32_t largest(std::size_t begin, std::size_t end, Each each) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  if (end - begin < lanes) {
    std::int32_t most = 0;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, hn::GetLane(each(SingleFloat(), i)));
    return most;
  }
  // The last vector ends with the bin, so it may overlap the one before, which does not change a maximum.
  auto most = each(d, end - lanes);
  for (std::size_t i = begin; i + lanes < end; i += lanes) most = hn::Max(most, each(d, i));
  return hn::GetLane(hn::MaxOfLanes(Ints<Floats>(), most));
}

template <bool kMomentum>
HWY_INLINE MagnitudeBits maximum(const SliceData& s, std::size_t begin, std::size_t end) {
  std::int32_t most =
      largest(begin, end, [&](auto d, std::size_t i) HWY_ATTR { return magnitude_at<kMomentum>(d, s, i); });
  if (most >= static_cast<std::int32_t>(kInfinityBits)) {
    most = largest(begin, end, [&](auto d, std::size_t i) HWY_ATTR {
      const auto m = magnitude_at<kMomentum>(d, s, i);
      return hn::IfThenZeroElse(hn::Gt(m, just_below(d, kInfinityBits)), m);
    });
  }
  return static_cast<MagnitudeBits>(most);
}

template <bool kMomentum>
void bin_maxima_with(const SliceData& s, const std::uint32_t* ends, std::size_t first, std::size_t last,
                     MagnitudeBits* maxima) {
  for (std::size_t bin = first; bin < last; ++bin) {
    const std::size_t begin = bin == 0 ? 0 : ends[bin - 1];
    maxima[bin] = maximum<kMomentum>(s, begin, ends[bin]);
  }
}

void bin_maxima_any(const SliceData& s, const std::uint32_t* ends, std::size_t first, std::size_t last,
                    MagnitudeBits* maxima) {
  s.velocity != nullptr ? bin_maxima_with<true>(s, ends, first, last, maxima)
                        : bin_maxima_with<false>(s, ends, first, last, maxima);
}

// ---- AdaComp

/// The bins of this many words are measured before elements are selected from them. They are few enough that
/// gradient and residual are still in the first-level cache when they are read again.
constexpr std::size_t kChunkWords = 16;

template <bool kMomentum>
Selected adacomp_with(const SliceData& s, const Bins& bins, MagnitudeBits* maxima, std::uint16_t* offsets,
                      float* values) {
  const std::span<const std::uint32_t> ends = bins.ends;
  BinRule<true> rule(bins, {maxima, ends.size()});
  rule.seek(0);
  Pass<kMomentum, false, BinRule<true>> pass{s, rule, 0, offsets, values, {}};
  const std::size_t words = words_for(s.elements);
  for (std::size_t word = 0, bin = 0; word < words;) {
    const std::size_t target = std::min(s.elements, (word + kChunkWords) * kWordElements);
    std::size_t last_bin = bin;
    while (last_bin < ends.size() && (last_bin == 0 || ends[last_bin - 1] < target)) ++last_bin;
    bin_maxima_with<kMomentum>(s, ends.data(), bin, last_bin, maxima);
    const std::size_t covered = ends[last_bin - 1];
    const std::size_t last_word = covered == s.elements ? words : covered / kWordElements;
    pass.words(word, last_word);
    word = last_word, bin = last_bin;
  }
  return pass.selected;
}

Selected adacomp_any(const SliceData& s, const Bins& bins, MagnitudeBits* maxima, std::uint16_t* offsets,
                     float* values) {
  return s.velocity != nullptr ? adacomp_with<true>(s, bins, maxima, offsets, values)
                               : adacomp_with<false>(s, bins, maxima, offsets, values);
}

// ---- Whole slices

/// Calls each(d, i) for vectors of the elements from i on. Elements at the end that fill no vector come one
/// at a time, with a tag for a single element.
template <class Each>
HWY_INLINE void in_vectors(std::size_t count, Each each) {
  const Floats d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) each(d, i);
  for (; i < count; ++i) each(SingleFloat(), i);
}

template <bool kMomentum>
void magnitudes_with(const SliceData& s, MagnitudeBits* to) {
  auto* const ints = reinterpret_cast<std::int32_t*>(to);
  in_vectors(s.elements, [&](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(magnitude_at<kMomentum>(d, s, i), Ints<decltype(d)>(), ints + i);
  });
}

void magnitudes_any(const SliceData& s, MagnitudeBits* to) {
  s.velocity != nullptr ? magnitudes_with<true>(s, to) : magnitudes_with<false>(s, to);
}

template <bool kMomentum>
std::size_t magnitudes_from_with(const SliceData& s, MagnitudeBits least, MagnitudeBits* to) {
  auto* const ints = reinterpret_cast<std::int32_t*>(to);
  std::size_t count = 0;
  in_vectors(s.elements, [&](auto d, std::size_t i) HWY_ATTR {
    const Ints<decltype(d)> di;
    if (i % kWordElements == 0) {
      prefetch_to_read(reinterpret_cast<const std::byte*>(s.gradient + i) + kAhead, 256);
      prefetch_to_read(reinterpret_cast<const std::byte*>(s.residual + i) + kAhead, 256);
    }
    const auto m = magnitude_at<kMomentum>(d, s, i);
    const std::uint64_t bits = to_bits(di, hn::Gt(m, just_below(d, least)));
    // All lanes are written, which is not beyond the room for the elements up to here.
    hn::StoreU(pack_lanes(di, m, bits), di, ints + count);
    count += popcount(bits);
  });
  return count;
}

std::size_t magnitudes_from_any(const SliceData& s, MagnitudeBits least, MagnitudeBits* to) {
  return s.velocity != nullptr ? magnitudes_from_with<true>(s, least, to)
                               : magnitudes_from_with<false>(s, least, to);
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
// HWY_EXPORT must stand in the namespace that holds those of the instruction sets.
namespace nzcl {
HWY_EXPORT(select_any);
HWY_EXPORT(bin_maxima_any);
HWY_EXPORT(adacomp_any);
HWY_EXPORT(magnitudes_any);
HWY_EXPORT(magnitudes_from_any);
}  // namespace nzcl

namespace nzcl::compress {

Selected select(const SliceData& slice, const Rule& rule, std::size_t first_word, std::size_t last_word,
                std::span<std::uint16_t> offsets, std::span<float> values) noexcept {
  assert(last_word <= words_for(slice.elements));
  [[maybe_unused]] const std::size_t room =
      std::min(slice.elements, last_word * kWordElements) - first_word * kWordElements;
  assert(offsets.size() >= room && values.size() >= room);
  assert(rule.kind != Rule::Kind::threshold || rule.threshold >= 1);
  if (first_word == last_word) return {};
  return HWY_DYNAMIC_DISPATCH(select_any)(slice, rule, first_word, last_word, offsets.data(), values.data());
}

Selected select_adacomp(const SliceData& slice, const Bins& bins, std::span<MagnitudeBits> maxima,
                        std::span<std::uint16_t> offsets, std::span<float> values) noexcept {
  assert(!bins.ends.empty() && bins.ends.back() == slice.elements && maxima.size() == bins.ends.size());
  assert(offsets.size() >= slice.elements && values.size() >= slice.elements);
  return HWY_DYNAMIC_DISPATCH(adacomp_any)(slice, bins, maxima.data(), offsets.data(), values.data());
}

void bin_maxima(const SliceData& slice, const Bins& bins, std::span<MagnitudeBits> maxima) noexcept {
  assert(maxima.size() >= bins.ends.size());
  HWY_DYNAMIC_DISPATCH(bin_maxima_any)(slice, bins.ends.data(), 0, bins.ends.size(), maxima.data());
}

void magnitudes(const SliceData& slice, std::span<MagnitudeBits> to) noexcept {
  assert(to.size() >= slice.elements);
  HWY_DYNAMIC_DISPATCH(magnitudes_any)(slice, to.data());
}

std::size_t magnitudes_from(const SliceData& slice, MagnitudeBits least,
                            std::span<MagnitudeBits> to) noexcept {
  assert(to.size() >= slice.elements && least > 0);
  return HWY_DYNAMIC_DISPATCH(magnitudes_from_any)(slice, least, to.data());
}

void feed_back(std::span<const std::uint16_t> offsets, std::span<const float> before,
               std::span<const float> sent, float* residual) noexcept {
  // The residual may be in no cache: between a selection and its codes there may be a whole tensor.
  constexpr std::size_t kAheadOffsets = 32;
  const std::size_t last = offsets.size() > kAheadOffsets ? offsets.size() - kAheadOffsets : 0;
  const auto keep = [&](std::size_t i) { residual[offsets[i]] = lost(before[i], sent[i]); };
  for (std::size_t i = 0; i < last; ++i) {
    __builtin_prefetch(residual + offsets[i + kAheadOffsets], 1);
    keep(i);
  }
  for (std::size_t i = last; i < offsets.size(); ++i) keep(i);
}

}  // namespace nzcl::compress
#endif  // HWY_ONCE
