#include "runtime/compress/select.h"

#include <algorithm>
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

// ---- Rules. begin(word) is called before the 64 elements that belong to a word of the bitmap; selects()
// then says for each vector of these elements which of them are sent.

/// threshold - 1 in every lane: what is greater than it is at least the threshold. Comparisons with "greater"
/// are those that all instruction sets have.
template <class D>
HWY_INLINE hn::Vec<Ints<D>> just_below(D, MagnitudeBits threshold) {
  return hn::Set(Ints<D>(), static_cast<std::int32_t>(threshold) - 1);
}

struct ThresholdRule {
  explicit ThresholdRule(const Rule& rule) : threshold(rule.threshold) {}
  void begin(std::size_t) {}
  template <class D>
  HWY_INLINE hn::Mask<Ints<D>> selects(D d, std::size_t, std::size_t, hn::Vec<D> total, hn::Vec<D>) const {
    return hn::Gt(magnitude(d, total), just_below(d, threshold));
  }
  MagnitudeBits threshold;
};

/// The thresholds of the bins, spread over the 64 elements of a word, so that they can be loaded as vectors.
/// Each is stored as threshold - 1, which a selected magnitude must exceed.
class BinRow {
 public:
  explicit BinRow(const Rule& rule) : ends_(rule.bins.ends), thresholds_(rule.bin_thresholds) {}
  /// Starts with the bin of the word's first element.
  void seek(std::size_t word) {
    const auto first = static_cast<std::uint32_t>(word * kWordElements);
    bin_ = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
    filled_ = ends_.size();
  }
  HWY_INLINE void begin(std::size_t word) {
    const std::size_t first = word * kWordElements;
    while (bin_ + 1 < ends_.size() && ends_[bin_] <= first) ++bin_;
    // A word that lies wholly in the bin of the word before needs the row as it is.
    if (filled_ == bin_ && ends_[bin_] >= first + kWordElements) return;
    fill(bin_, 0);
    for (std::size_t i = bin_; i + 1 < ends_.size() && ends_[i] < first + kWordElements; ++i)
      fill(i + 1, ends_[i] - first);
    filled_ = ends_[bin_] >= first + kWordElements ? bin_ : ends_.size();
  }
  const std::int32_t* row() const { return row_; }

 private:
  /// Fills the row from `at` to the end of the word with the threshold of `bin`. It writes whole vectors, so
  /// the last one may go beyond the word; the row has room for that.
  HWY_INLINE void fill(std::size_t bin, std::size_t at) {
    const hn::CappedTag<std::int32_t, 16> d;
    const auto value = hn::Set(d, static_cast<std::int32_t>(thresholds_[bin]) - 1);
    for (; at < kWordElements; at += hn::Lanes(d)) hn::StoreU(value, d, row_ + at);
  }

  std::span<const std::uint32_t> ends_;
  std::span<const MagnitudeBits> thresholds_;
  std::size_t bin_ = 0;     // the bin in which the word begins
  std::size_t filled_ = 0;  // the bin that fills the whole row; ends_.size() if there are several
  std::int32_t row_[2 * kWordElements];
};

/// Compares with the threshold of the element's bin: |G|, or |G + x| with kTwice, as AdaComp does.
template <bool kTwice>
struct BinRule {
  explicit BinRule(const Rule& rule) : row(rule) {}
  HWY_INLINE void begin(std::size_t word) { row.begin(word); }
  template <class D>
  HWY_INLINE hn::Mask<Ints<D>> selects(D d, std::size_t, std::size_t lane, hn::Vec<D> total,
                                       hn::Vec<D> x) const {
    const Ints<D> di;
    const auto compared = kTwice ? hn::Add(total, x) : total;
    const auto reaches = hn::Gt(magnitude(d, compared), hn::LoadU(di, row.row() + lane));
    return hn::And(reaches, hn::Gt(magnitude(d, total), hn::Zero(di)));
  }
  BinRow row;
};

struct RandomRule {
  explicit RandomRule(const Rule& rule) : key(rule.key), draw_below(rule.draw_below) {}
  void begin(std::size_t) {}
  template <class D>
  HWY_INLINE hn::Mask<Ints<D>> selects(D d, std::size_t word, std::size_t lane, hn::Vec<D> total,
                                       hn::Vec<D>) const {
    const hn::RebindToUnsigned<D> du;
    const Ints<D> di;
    const auto number = numbers_from(du, static_cast<std::uint32_t>(word * kWordElements + lane));
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

/// Adds x to the residual of one word, and returns which elements are selected.
template <bool kMomentum, class R>
HWY_INLINE std::uint64_t accumulate(const SliceData& s, const R& rule, const WordData& w, std::size_t word) {
  const Floats d;
  std::uint64_t bits = 0;
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d)) {
    const auto x = x_at<kMomentum>(d, s, w.gradient + lane, kMomentum ? w.velocity + lane : nullptr);
    const auto total = hn::Add(hn::LoadU(d, w.residual + lane), x);
    hn::StoreU(total, d, w.residual + lane);
    if constexpr (kMomentum) hn::StoreU(x, d, w.velocity + lane);
    bits |= to_bits(Ints<Floats>(), rule.selects(d, word, lane, total, x)) << lane;
  }
  return bits;
}

HWY_INLINE std::size_t count_at_least(const float* p, MagnitudeBits threshold) {
  const Floats d;
  std::size_t count = 0;
  for (std::size_t lane = 0; lane < kWordElements; lane += hn::Lanes(d))
    count +=
        hn::CountTrue(Ints<Floats>(), hn::Gt(magnitude(d, hn::LoadU(d, p + lane)), just_below(d, threshold)));
  return count;
}

/// What the pass over the words of a slice reads and writes. `out` takes the selected values.
template <bool kMomentum, bool kCountLower, class R>
struct Pass {
  const SliceData& slice;
  R& rule;
  const MagnitudeBits lower;
  std::uint64_t* bitmap;
  PackedWriter<std::uint32_t> out;
  Selected selected;

  /// Handles one word. The bits of `valid` say which of its 64 elements belong to the slice.
  HWY_INLINE void word(std::size_t number, const WordData& w, std::uint64_t valid) {
    rule.begin(number);
    const std::uint64_t bits = accumulate<kMomentum>(slice, rule, w, number) & valid;
    if constexpr (kCountLower) selected.count_lower += count_at_least(w.residual, lower);
    bitmap[number] = bits;
    if (bits == 0) return;
    const std::size_t count = popcount(bits);
    selected.count += count;
    const auto* const from = reinterpret_cast<const std::uint32_t*>(w.residual);
    [[maybe_unused]] const bool fits =
        out.put(count, [&](std::uint32_t* to) HWY_ATTR { pack_word<BitsOf<4>>(from, bits, to); });
    assert(fits);
    clear(w.residual, bits);
    if constexpr (kMomentum) clear(w.velocity, bits);
  }
};

template <bool kMomentum, class P>
HWY_INLINE void run_words(const SliceData& s, std::size_t first, std::size_t last, P& pass) {
  const std::size_t whole = std::min(last, s.elements / kWordElements);
  for (std::size_t word = first; word < whole; ++word) {
    const std::size_t at = word * kWordElements;
    prefetch_to_read(reinterpret_cast<const std::byte*>(s.gradient + at) + kAhead, 256);
    prefetch_to_write(reinterpret_cast<std::byte*>(s.residual + at) + kAhead, 256);
    pass.word(word, {s.gradient + at, s.residual + at, kMomentum ? s.velocity + at : nullptr},
              ~std::uint64_t{0});
  }
  if (last == whole) return;
  // The slice ends within the last word. It is handled in copies that are filled up with zeros, because
  // vectors would read and write behind the slice's end.
  const std::size_t at = whole * kWordElements, rest = s.elements - at;
  float gradient[kWordElements] = {}, residual[kWordElements] = {}, velocity[kWordElements] = {};
  std::memcpy(gradient, s.gradient + at, rest * sizeof(float));
  std::memcpy(residual, s.residual + at, rest * sizeof(float));
  if constexpr (kMomentum) std::memcpy(velocity, s.velocity + at, rest * sizeof(float));
  pass.word(whole, {gradient, residual, velocity}, low_bits(rest));
  std::memcpy(s.residual + at, residual, rest * sizeof(float));
  if constexpr (kMomentum) std::memcpy(s.velocity + at, velocity, rest * sizeof(float));
}

template <bool kMomentum, bool kCountLower, class R>
Selected run(const SliceData& s, R rule, MagnitudeBits lower, std::size_t first, std::size_t last,
             std::uint64_t* bitmap, std::span<float> values) {
  Pass<kMomentum, kCountLower, R> pass{
      s, rule, lower, bitmap, {reinterpret_cast<std::byte*>(values.data()), values.size()}, {}};
  run_words<kMomentum>(s, first, last, pass);
  return pass.selected;
}

template <bool kMomentum>
Selected select_with(const SliceData& s, const Rule& rule, std::size_t first, std::size_t last,
                     std::uint64_t* bitmap, std::span<float> values) {
  switch (rule.kind) {
    case Rule::Kind::threshold:
      if (rule.lower_threshold != 0)
        return run<kMomentum, true>(s, ThresholdRule(rule), rule.lower_threshold, first, last, bitmap,
                                    values);
      return run<kMomentum, false>(s, ThresholdRule(rule), 0, first, last, bitmap, values);
    case Rule::Kind::bin_threshold: {
      BinRule<false> bins(rule);
      bins.row.seek(first);
      return run<kMomentum, false>(s, bins, 0, first, last, bitmap, values);
    }
    case Rule::Kind::adacomp: {
      BinRule<true> bins(rule);
      bins.row.seek(first);
      return run<kMomentum, false>(s, bins, 0, first, last, bitmap, values);
    }
    case Rule::Kind::random:
      return run<kMomentum, false>(s, RandomRule(rule), 0, first, last, bitmap, values);
  }
  return {};
}

Selected select_any(const SliceData& s, const Rule& rule, std::size_t first, std::size_t last,
                    std::uint64_t* bitmap, std::span<float> values) {
  return s.velocity != nullptr ? select_with<true>(s, rule, first, last, bitmap, values)
                               : select_with<false>(s, rule, first, last, bitmap, values);
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

Selected select(const SliceData& slice, const Rule& rule, std::size_t first_word, std::size_t last_word,
                std::span<std::uint64_t> bitmap, std::span<float> values) noexcept {
  assert(last_word <= words_for(slice.elements) && bitmap.size() >= last_word);
  assert(rule.kind != Rule::Kind::threshold || rule.threshold >= 1);
  if (first_word == last_word) return {};
  return HWY_DYNAMIC_DISPATCH(select_any)(slice, rule, first_word, last_word, bitmap.data(), values);
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

std::size_t feed_back(std::span<const std::uint16_t> offsets, std::span<const float> before,
                      std::span<const float> sent, float* residual) noexcept {
  std::size_t bad = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const bool finite = std::isfinite(sent[i]);
    residual[offsets[i]] = finite ? before[i] - sent[i] : 0.0f;
    bad += finite ? 0 : 1;
  }
  return bad;
}

}  // namespace nzcl::compress
#endif  // HWY_ONCE
