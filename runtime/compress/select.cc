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

using Floats = hn::CappedTag<float, 16>;
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
  explicit BinRule(const Rule& rule) : ends_(rule.bins.ends), thresholds_(rule.bin_thresholds) {}
  /// Starts with the bin of this element.
  void seek(std::size_t first) {
    const auto past = std::upper_bound(ends_.begin(), ends_.end(), first);
    bin_ = static_cast<std::size_t>(past - ends_.begin());
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
    const auto end = first + static_cast<std::uint32_t>(hn::Lanes(d));
    auto row = just_below(d, thresholds_[bin_]);
    while (ends_[bin_] <= end && bin_ + 1 < ends_.size()) {
      const auto before = hn::FirstN(di, ends_[bin_] - first);
      row = hn::IfThenElse(before, row, just_below(d, thresholds_[++bin_]));
    }
    return row;
  }

  std::span<const std::uint32_t> ends_;
  std::span<const MagnitudeBits> thresholds_;
  std::size_t bin_ = 0;  // that of the next element
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

/// Sets the elements whose bits are set in `bits` to zero.
HWY_INLINE void clear(float* p, std::uint64_t bits) {
  const PackTag<std::uint32_t> d;
  auto* const words = reinterpret_cast<std::uint32_t*>(p);
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
    const auto mask = to_mask(d, bits_at(d, bits, lane));
    hn::StoreU(hn::IfThenZeroElse(mask, hn::LoadU(d, words + lane)), d, words + lane);
  }
}

/// Which elements of a word are selected, and which reach the lower threshold.
struct WordBits {
  std::uint64_t selected = 0, lower = 0;
};

/// Adds x to the residual of one word, which begins with element `first` of the slice.
template <bool kMomentum, bool kCountLower, class R>
HWY_INLINE WordBits accumulate(const SliceData& s, R& rule, MagnitudeBits lower, const WordData& w,
                               std::size_t first) {
  const Floats d;
  const Ints<Floats> di;
  WordBits bits;
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
    const auto x = x_at<kMomentum>(d, s, w.gradient + lane, kMomentum ? w.velocity + lane : nullptr);
    const auto total = hn::Add(hn::LoadU(d, w.residual + lane), x);
    hn::StoreU(total, d, w.residual + lane);
    if constexpr (kMomentum) hn::StoreU(x, d, w.velocity + lane);
    const auto number = static_cast<std::uint32_t>(first + lane);
    bits.selected |= to_bits(di, rule.selects(d, number, total, x)) << lane;
    if constexpr (kCountLower)
      bits.lower |= to_bits(di, hn::Gt(magnitude(d, total), just_below(d, lower))) << lane;
  }
  return bits;
}

/// A pass over the words of a slice, in groups. First G of a whole group is computed and compared, without a
/// branch that depends on what is selected. The selected elements are listed after that, while the group is
/// in the first-level cache: few of them one by one, because a branch for each word would be mispredicted
/// wherever about half of the words have one, and many of them by moving lanes.
template <bool kMomentum, bool kCountLower, class R>
struct Pass {
  static constexpr std::size_t kGroupWords = 32;
  /// With more selected elements per word, moving all lanes takes less time than one element after the other.
  static constexpr std::size_t kManyPerWord = 16;

  const SliceData& slice;
  R rule;
  const MagnitudeBits lower;
  std::uint16_t* offsets;
  float* values;
  Selected selected;

  WordData data(std::size_t word) const {
    const std::size_t at = word * kWordElements;
    return {slice.gradient + at, slice.residual + at, kMomentum ? slice.velocity + at : nullptr};
  }

  HWY_INLINE WordBits compare(std::size_t word, const WordData& w) {
    return accumulate<kMomentum, kCountLower>(slice, rule, lower, w, word * kWordElements);
  }

  /// The words [first, last), at most kGroupWords, all of whose elements belong to the slice.
  HWY_INLINE void group(std::size_t first, std::size_t last) {
    std::uint64_t bits[kGroupWords];
    std::uint64_t nonzero = 0;
    std::size_t count = 0;
    for (std::size_t word = first; word < last; ++word) {
      const WordData w = data(word);
      prefetch_to_read(reinterpret_cast<const std::byte*>(w.gradient) + kAhead, 256);
      prefetch_to_write(reinterpret_cast<std::byte*>(w.residual) + kAhead, 256);
      const WordBits found = compare(word, w);
      if constexpr (kCountLower) selected.count_lower += popcount(found.lower);
      bits[word - first] = found.selected;
      nonzero |= std::uint64_t{found.selected != 0} << (word - first);
      count += popcount(found.selected);
    }
    const bool many = count > kManyPerWord * (last - first);
    std::size_t at = selected.count;
    for (; nonzero != 0; nonzero &= nonzero - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(nonzero));
      // This may write beyond the word's own offsets, but not beyond the room for its elements.
      write_offsets(bits[i], first + i, offsets + at);
      if (many) move(data(first + i), bits[i], values + at);
      at += popcount(bits[i]);
    }
    if (!many) take(selected.count, at);
    selected.count = at;
  }

  /// Writes the elements of a word that are in `bits`, and sets them to zero.
  HWY_INLINE void move(const WordData& w, std::uint64_t bits, float* to) {
    pack_word<BitsOf<4>>(reinterpret_cast<const std::uint32_t*>(w.residual), bits,
                         reinterpret_cast<std::uint32_t*>(to));
    clear(w.residual, bits);
    if constexpr (kMomentum) clear(w.velocity, bits);
  }

  /// The same for the elements at the offsets from number `first` to `last`.
  HWY_INLINE void take(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      const std::uint16_t offset = offsets[i];
      values[i] = slice.residual[offset];
      slice.residual[offset] = 0;
      if constexpr (kMomentum) slice.velocity[offset] = 0;
    }
  }

  /// The word in which the slice ends. It is handled in copies that are filled up with zeros, because vectors
  /// would read and write behind the slice's end.
  void partial(std::size_t word) {
    const std::size_t at = word * kWordElements, rest = slice.elements - at;
    float gradient[kWordElements] = {}, residual[kWordElements] = {}, velocity[kWordElements] = {};
    std::memcpy(gradient, slice.gradient + at, rest * sizeof(float));
    std::memcpy(residual, slice.residual + at, rest * sizeof(float));
    if constexpr (kMomentum) std::memcpy(velocity, slice.velocity + at, rest * sizeof(float));
    const WordBits found = compare(word, {gradient, residual, velocity});
    std::memcpy(slice.residual + at, residual, rest * sizeof(float));
    if constexpr (kMomentum) std::memcpy(slice.velocity + at, velocity, rest * sizeof(float));
    if constexpr (kCountLower) selected.count_lower += popcount(found.lower & low_bits(rest));
    const std::size_t first = selected.count;
    for (std::uint64_t left = found.selected & low_bits(rest); left != 0; left &= left - 1)
      offsets[selected.count++] = static_cast<std::uint16_t>(at + std::size_t(std::countr_zero(left)));
    take(first, selected.count);
  }
};

template <bool kMomentum, bool kCountLower, class R>
Selected run(const SliceData& s, R rule, MagnitudeBits lower, std::size_t first, std::size_t last,
             std::uint16_t* offsets, float* values) {
  using Words = Pass<kMomentum, kCountLower, R>;
  Words pass{s, rule, lower, offsets, values, {}};
  pass.rule.seek(first * kWordElements);
  const std::size_t whole = std::min(last, s.elements / kWordElements);
  for (std::size_t word = first; word < whole; word += Words::kGroupWords)
    pass.group(word, std::min(whole, word + Words::kGroupWords));
  if (last > whole) pass.partial(whole);
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
      return run<kMomentum, false>(s, BinRule<false>(rule), 0, first, last, offsets, values);
    case Rule::Kind::adacomp:
      return run<kMomentum, false>(s, BinRule<true>(rule), 0, first, last, offsets, values);
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

/// |G|, or 0 where G is not finite.
template <bool kMomentum, class D>
HWY_INLINE hn::Vec<Ints<D>> finite_magnitude_at(D d, const SliceData& s, std::size_t at) {
  const auto m = magnitude_at<kMomentum>(d, s, at);
  return hn::IfThenZeroElse(hn::Gt(m, just_below(d, kInfinityBits)), m);
}

template <bool kMomentum>
HWY_INLINE MagnitudeBits maximum(const SliceData& s, std::size_t begin, std::size_t end) {
  const Floats d;
  const Ints<Floats> di;
  const std::size_t lanes = hn::Lanes(d);
  if (end - begin < lanes) {
    const SingleFloat d1;
    std::int32_t most = 0;
    for (std::size_t i = begin; i < end; ++i)
      most = std::max(most, hn::GetLane(finite_magnitude_at<kMomentum>(d1, s, i)));
    return static_cast<MagnitudeBits>(most);
  }
  // The last vector ends with the bin, so it may overlap the one before, which does not change a maximum.
  auto most = finite_magnitude_at<kMomentum>(d, s, end - lanes);
  for (std::size_t i = begin; i + lanes < end; i += lanes)
    most = hn::Max(most, finite_magnitude_at<kMomentum>(d, s, i));
  return static_cast<MagnitudeBits>(hn::GetLane(hn::MaxOfLanes(di, most)));
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

void magnitudes_any(const SliceData& s, MagnitudeBits* to) {
  auto* const ints = reinterpret_cast<std::int32_t*>(to);
  if (s.velocity != nullptr) {
    in_vectors(s.elements, [&](auto d, std::size_t i) HWY_ATTR {
      hn::StoreU(magnitude_at<true>(d, s, i), Ints<decltype(d)>(), ints + i);
    });
  } else {
    in_vectors(s.elements, [&](auto d, std::size_t i) HWY_ATTR {
      hn::StoreU(magnitude_at<false>(d, s, i), Ints<decltype(d)>(), ints + i);
    });
  }
}

/// Adds up in sixteen sums, each of every sixteenth value. So the order of the additions, and with it the
/// result, is the same for vectors of any length.
double sum_of_squares_any(const float* values, std::size_t count) {
  constexpr std::size_t kSums = 16;
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  alignas(64) double sums[kSums] = {};
  const std::size_t whole = count / kSums * kSums;
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t lane = 0; lane < kSums; lane += hn::Lanes(d)) {
      const auto v = hn::PromoteTo(d, hn::LoadU(df, values + i + lane));
      hn::Store(hn::Add(hn::Load(d, sums + lane), hn::Mul(v, v)), d, sums + lane);
    }
  }
  for (std::size_t i = whole; i < count; ++i) sums[i - whole] += double{values[i]} * double{values[i]};
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

std::size_t find_non_finite_any(const float* values, std::size_t count) {
  const Floats d;
  const std::size_t step = 4 * hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    auto most = magnitude(d, hn::LoadU(d, values + i));
    for (std::size_t lane = hn::Lanes(d); lane < step; lane += hn::Lanes(d))
      most = hn::Max(most, magnitude(d, hn::LoadU(d, values + i + lane)));
    if (!hn::AllFalse(Ints<Floats>(), hn::Gt(most, just_below(d, kInfinityBits)))) break;
  }
  for (; i < count; ++i) {
    if (!std::isfinite(values[i])) return i;
  }
  return count;
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
// HWY_EXPORT must stand in the namespace that holds those of the instruction sets.
namespace nzcl {
HWY_EXPORT(select_any);
HWY_EXPORT(bin_maxima_any);
HWY_EXPORT(magnitudes_any);
HWY_EXPORT(sum_of_squares_any);
HWY_EXPORT(find_non_finite_any);
}  // namespace nzcl

namespace nzcl::compress {
namespace {

/// As integers, so that compilers make no branch of it and use vectors.
bool is_finite(float value) { return (std::bit_cast<MagnitudeBits>(value) & 0x7fffffffu) < kInfinityBits; }

}  // namespace

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

void bin_maxima(const SliceData& slice, const Bins& bins, std::size_t first, std::size_t last,
                std::span<MagnitudeBits> maxima) noexcept {
  assert(last <= bins.ends.size() && maxima.size() >= last);
  HWY_DYNAMIC_DISPATCH(bin_maxima_any)(slice, bins.ends.data(), first, last, maxima.data());
}

void magnitudes(const SliceData& slice, std::span<MagnitudeBits> to) noexcept {
  assert(to.size() >= slice.elements);
  HWY_DYNAMIC_DISPATCH(magnitudes_any)(slice, to.data());
}

double sum_of_squares(std::span<const float> values) noexcept {
  return HWY_DYNAMIC_DISPATCH(sum_of_squares_any)(values.data(), values.size());
}

std::size_t find_non_finite(std::span<const float> values) noexcept {
  return HWY_DYNAMIC_DISPATCH(find_non_finite_any)(values.data(), values.size());
}

std::size_t count_non_finite(std::span<const float> values) noexcept {
  std::size_t count = 0;
  for (const float value : values) count += is_finite(value) ? 0 : 1;
  return count;
}

void to_sign_and_scale(std::span<float> values, float scale) noexcept {
  const MagnitudeBits magnitude = std::bit_cast<MagnitudeBits>(scale);
  for (float& value : values) {
    const auto sign = std::bit_cast<MagnitudeBits>(value) & 0x80000000u;
    const float sent = std::bit_cast<float>(sign | magnitude);
    value = is_finite(value) ? sent : value;
  }
}

void feed_back(std::span<const std::uint16_t> offsets, std::span<const float> before,
               std::span<const float> sent, float* residual) noexcept {
  // The residual may be in no cache: between a selection and its codes there may be a whole tensor.
  constexpr std::size_t kAheadOffsets = 32;
  const std::size_t last = offsets.size() > kAheadOffsets ? offsets.size() - kAheadOffsets : 0;
  const auto keep = [&](std::size_t i) {
    const float lost = before[i] - sent[i];
    residual[offsets[i]] = is_finite(sent[i]) ? lost : 0.0f;
  };
  for (std::size_t i = 0; i < last; ++i) {
    __builtin_prefetch(residual + offsets[i + kAheadOffsets], 1);
    keep(i);
  }
  for (std::size_t i = last; i < offsets.size(); ++i) keep(i);
}

}  // namespace nzcl::compress
#endif  // HWY_ONCE
