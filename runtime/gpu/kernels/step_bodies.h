// The kernels of a compressor's step, one for each SelectPass, written once as those of bodies.h are.
#pragma once

#include "runtime/base/mix.h"
#include "runtime/gpu/kernels/bodies.h"

namespace nzcl::gpu {

inline constexpr std::uint32_t kInfinity = 0x7f800000;  // its bits

NZCL_ON_GPU inline std::uint32_t magnitude_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value) & 0x7fffffff;
}

/// The elements of one slice, and what is selected of them: bits that the threads share, first those of what
/// is selected, and behind them others of as many elements or bins.
template <typename Block>
class Selection {
 public:
  NZCL_ON_GPU Selection(Block& block, const SelectJob& job)
      : block_(block),
        job_(job),
        begin_(block.index() * SelectJob::kSlice),
        factor_(job.factor == nullptr ? 1.0F : *job.factor) {
    const std::uint64_t left = job.elements - begin_;
    elements_ = left < SelectJob::kSlice ? static_cast<std::uint32_t>(left) : SelectJob::kSlice;
  }

  NZCL_ON_GPU void put_back() {
    block_.each(job_.counts[block_.index()].selected, [&](std::uint32_t i) {
      job_.residual[begin_ + job_.offsets[begin_ + i]] = job_.values[begin_ + i];
    });
  }

  /// In the order of sum_of_squares() in runtime/compress: each lane has sums of its own.
  NZCL_ON_GPU void square() {
    constexpr std::uint32_t kSums = SelectJob::kSlice / SelectJob::kSquares;
    auto* const of_lanes = reinterpret_cast<double*>(block_.words());
    double* const sums = of_lanes + kSums * kLanes;
    block_.each_warp([&](auto& warp) NZCL_INLINE {
      for (std::uint32_t s = warp.index(); s < kSums; s += warp.count()) {
        warp.each_lane([&](unsigned lane) NZCL_INLINE {
          double sum = 0;
          for (std::uint32_t i = s * SelectJob::kSquares + lane; i < (s + 1) * SelectJob::kSquares;
               i += kLanes) {
            const double value = i < elements_ ? double{job_.gradient[begin_ + i]} : 0.0;
            sum += value * value;
          }
          of_lanes[s * kLanes + lane] = sum;
        });
      }
    });
    const auto add_up = [](const double* from, std::uint32_t count) {
      double sum = 0;
      for (std::uint32_t i = 0; i < count; ++i) sum += from[i];
      return sum;
    };
    block_.each(kSums, [&](std::uint32_t s) { sums[s] = add_up(of_lanes + s * kLanes, kLanes); });
    block_.each(1, [&](std::uint32_t) { job_.squares[block_.index()] = add_up(sums, kSums); });
  }

  NZCL_ON_GPU void measure() {
    each_bin([&](auto& warp, std::uint32_t bin, std::uint32_t begin, std::uint32_t end)
                 NZCL_INLINE { tell_largest(warp, bin, largest(warp, begin, end)); });
  }

  /// Zeros are not counted: they are not among the largest.
  NZCL_ON_GPU void count() {
    const std::uint32_t shift = RankSearch::shift(job_.round), above = RankSearch::above(job_.round),
                        mask = (1U << (above - shift)) - 1, prefix = job_.search->found.threshold;
    auto* const counts = reinterpret_cast<std::uint32_t*>(block_.words());
    block_.each(RankSearch::kBuckets, [&](std::uint32_t b) { counts[b] = 0; });
    const auto add = [&](std::uint32_t magnitude) {
      if (magnitude != 0 && magnitude >> above == prefix >> above)
        block_.add(counts + (magnitude >> shift & mask), 1U);
    };
    if (job_.by == SelectJob::By::block_rank) {
      block_.each(bins(), [&](std::uint32_t bin) { add(job_.maxima[first_bin() + bin]); });
    } else {
      constexpr std::uint32_t kAtOnce = 4, kRow = SelectJob::kSlice / kAtOnce;
      block_.each(kRow, [&](std::uint32_t i) NZCL_INLINE {
        Sums sums[kAtOnce];
        NZCL_UNROLL for (std::uint32_t r = 0; r < kAtOnce; ++r) sums[r] = sums_at(r * kRow + i);
        NZCL_UNROLL for (std::uint32_t r = 0; r < kAtOnce; ++r) add(magnitude_of(sums[r].total));
      });
    }
    block_.each(RankSearch::kBuckets, [&](std::uint32_t b) {
      if (counts[b] != 0) block_.add_everywhere(job_.search->counts + b, std::uint64_t{counts[b]});
      if (job_.round == RankSearch::kRounds - 1 && b < RankSearch::kLastBuckets)
        job_.last_counts[block_.index() * RankSearch::kLastBuckets + b] = counts[b];
    });
  }

  NZCL_ON_GPU void select() {
    using By = SelectJob::By;
    const bool ranked = job_.by == By::rank || job_.by == By::block_rank;
    const FoundRank found = ranked ? job_.search->found : FoundRank{};
    const std::uint32_t ties = ranked ? ties_here(found) : 0;
    block_.each(2 * SelectJob::kWords, [&](std::uint32_t w) { block_.words()[w] = 0; });
    if (job_.by == By::adacomp) {
      by_bins<true>([&](auto& warp, std::uint32_t bin, std::uint32_t begin, std::uint32_t end) NZCL_INLINE {
        const std::uint32_t most = largest(warp, begin, end);
        tell_largest(warp, bin, most);
        return most;
      });
    } else if (job_.by == By::block_rank) {
      choose_bins(found.threshold, ties);
      const std::uint64_t* const chosen = block_.words() + SelectJob::kWords;
      by_bins<false>([&](auto&, std::uint32_t bin, std::uint32_t, std::uint32_t)
                         NZCL_INLINE { return (chosen[bin / 64] >> bin % 64 & 1) != 0 ? 1 : kInfinity; });
      block_.each(SelectJob::kWords, [&](std::uint32_t w) { block_.words()[SelectJob::kWords + w] = 0; });
    } else if (job_.by == By::rank) {
      const bool finite = found.threshold < kInfinity;
      one_by_one(finite ? found.threshold + 1 : kInfinity, finite ? found.threshold : 0);
      settle_ties(ties);
    } else {
      one_by_one(job_.threshold, job_.lower_threshold);
    }
    take();
    if (job_.found != nullptr && block_.index() == 0)
      block_.each(1, [&](std::uint32_t) { *job_.found = found; });
    block_.raise(job_.flags + block_.index(), job_.value);
  }

 private:
  struct Sums {
    float x = 0, total = 0;
  };

  NZCL_ON_GPU std::uint64_t first_bin() const { return job_.first_bins[block_.index()]; }
  NZCL_ON_GPU std::uint32_t bins() const {
    return static_cast<std::uint32_t>(job_.first_bins[block_.index() + 1] - first_bin());
  }

  /// |G| >= threshold, or what is drawn. What reaches the lower one gets a bit of the second kind. Four rows
  /// of lanes at a time, because memory answers late.
  NZCL_ON_GPU void one_by_one(std::uint32_t threshold, std::uint32_t lower) {
    constexpr std::uint32_t kRows = 4;
    const bool draws = job_.by == SelectJob::By::draw;
    const std::uint64_t key = mix(mix(job_.key ^ block_.index()));
    block_.each_warp([&](auto& warp) NZCL_INLINE {
      for (std::uint32_t first = warp.index() * kRows * kLanes; first < elements_;
           first += warp.count() * kRows * kLanes) {
        unsigned found[2 * kRows];
        warp.template ballot<2 * kRows>(found, [&](unsigned lane) NZCL_INLINE {
          Sums sums[kRows];
          NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) sums[r] = sums_at(first + r * kLanes + lane);
          unsigned bits = 0;
          NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) {
            const std::uint32_t i = first + r * kLanes + lane;
            if (i >= elements_) continue;
            const std::uint32_t magnitude = keep(i, sums[r]);
            const bool selects =
                draws ? hash32(key, i) < job_.draw_below || magnitude >= kInfinity : magnitude >= threshold;
            bits |= selects ? 1U << r : 0U;
            if (lower != 0) bits |= magnitude >= lower ? 1U << (kRows + r) : 0U;
          }
          return bits;
        });
        warp.once([&] {
          NZCL_UNROLL for (std::uint32_t r = 0; r < kRows; ++r) {
            set_row(first + r * kLanes, found[r]);
            set_row(SelectJob::kSlice + first + r * kLanes, found[kRows + r]);
          }
        });
      }
    });
  }

  /// Calls f(warp, bin, where it begins, where it ends) for each bin. One warp has a bin.
  template <typename F>
  NZCL_ON_GPU void each_bin(F f) {
    const std::uint64_t first = first_bin();
    const std::uint32_t count = bins();
    block_.each_warp([&](auto& warp) NZCL_INLINE {
      for (std::uint32_t bin = warp.index(); bin < count; bin += warp.count())
        f(warp, bin, bin == 0 ? 0 : job_.bin_ends[first + bin - 1], job_.bin_ends[first + bin]);
    });
  }

  /// The largest |G| that is finite.
  template <typename Warp>
  NZCL_ON_GPU std::uint32_t largest(Warp& warp, std::uint32_t begin, std::uint32_t end) const {
    return warp.max([&](unsigned lane) NZCL_INLINE {
      std::uint32_t most = 0;
      for (std::uint32_t i = begin + lane; i < end; i += kLanes) {
        const std::uint32_t magnitude = magnitude_of(sums_at(i).total);
        if (magnitude < kInfinity && magnitude > most) most = magnitude;
      }
      return most;
    });
  }
  template <typename Warp>
  NZCL_ON_GPU void tell_largest(Warp& warp, std::uint32_t bin, std::uint32_t most) const {
    if (job_.maxima != nullptr) warp.once([&] { job_.maxima[first_bin() + bin] = most; });
  }

  /// |G|, or with kTwice |G + x|, is at least what f() returns of the bin, and G is not 0.
  template <bool kTwice, typename F>
  NZCL_ON_GPU void by_bins(F f) {
    each_bin([&](auto& warp, std::uint32_t bin, std::uint32_t begin, std::uint32_t end) NZCL_INLINE {
      const std::uint32_t least = f(warp, bin, begin, end);
      for (std::uint32_t first = begin; first < end; first += kLanes) {
        unsigned found[1];
        warp.template ballot<1>(found, [&](unsigned lane) NZCL_INLINE {
          const std::uint32_t i = first + lane;
          if (i >= end) return 0U;
          const Sums sums = sums_at(i);
          const bool reaches = magnitude_of(kTwice ? sums.total + sums.x : sums.total) >= least;
          return keep(i, sums) > 0 && reaches ? 1U : 0U;
        });
        warp.once([&] { set_row(first, found[0]); });
      }
    });
  }

  /// How many of those that equal the threshold are selected in this slice. Those of earlier slices come
  /// first.
  NZCL_ON_GPU std::uint32_t ties_here(const FoundRank& found) {
    std::uint64_t* const before = block_.words() + 2 * SelectJob::kWords;  // where nobody sets bits
    block_.each(1, [&](std::uint32_t) { *before = 0; });
    block_.each(static_cast<std::uint32_t>(block_.index()), [&](std::uint32_t slice) {
      const std::uint32_t bucket = found.threshold % RankSearch::kLastBuckets;
      block_.add(before,
                 std::uint64_t{job_.last_counts[std::uint64_t{slice} * RankSearch::kLastBuckets + bucket]});
    });
    const std::uint64_t all = found.equal > found.ties + job_.more_ties ? found.ties : found.equal;
    const std::uint64_t left = all > *before ? all - *before : 0;
    return left < SelectJob::kSlice ? static_cast<std::uint32_t>(left) : SelectJob::kSlice;
  }

  /// Leaves the first bits of the second kind.
  NZCL_ON_GPU void leave_first(std::uint32_t count) {
    std::uint64_t* const bits = block_.words() + SelectJob::kWords;
    const std::uint32_t* const before = count_before(block_, block_.words(), 2 * SelectJob::kWords);
    block_.each(SelectJob::kWords, [&](std::uint32_t w) {
      const std::uint32_t earlier = before[SelectJob::kWords + w] - before[SelectJob::kWords];
      std::uint64_t left = bits[w], first = 0;
      for (std::uint32_t n = earlier; n < count && left != 0; ++n) {
        first |= left & (~left + 1);
        left &= left - 1;
      }
      bits[w] = first;
    });
  }

  /// Selects the first of the elements that reach only the lower threshold, which is the largest below the
  /// threshold.
  NZCL_ON_GPU void settle_ties(std::uint32_t count) {
    std::uint64_t* const bits = block_.words();
    block_.each(SelectJob::kWords, [&](std::uint32_t w) { bits[SelectJob::kWords + w] &= ~bits[w]; });
    leave_first(count);
    block_.each(SelectJob::kWords, [&](std::uint32_t w) {
      bits[w] |= bits[SelectJob::kWords + w];
      bits[SelectJob::kWords + w] = 0;
    });
  }

  /// Sets the bits of the bins that reach the threshold, and of the first that equal it.
  NZCL_ON_GPU void choose_bins(std::uint32_t threshold, std::uint32_t equal) {
    const auto set_if = [&](auto chooses) {
      block_.each(bins(), [&](std::uint32_t bin) {
        if (chooses(job_.maxima[first_bin() + bin]))
          block_.set(SelectJob::kWords + bin / 64, std::uint64_t{1} << bin % 64);
      });
    };
    set_if([&](std::uint32_t largest) { return largest == threshold; });
    leave_first(equal);
    set_if([&](std::uint32_t largest) { return largest > threshold; });
  }

  /// Takes what is selected out of the residual.
  NZCL_ON_GPU void take() {
    const std::uint64_t* const bits = block_.words();
    const std::uint32_t* const before = count_before(block_, bits, 2 * SelectJob::kWords);
    block_.each_warp([&](auto& warp) NZCL_INLINE {
      for (std::uint32_t w = warp.index(); w < SelectJob::kWords; w += warp.count()) {
        const std::uint64_t word = bits[w];
        if (word == 0) continue;
        warp.each_lane([&](unsigned lane) NZCL_INLINE {
          for (unsigned b = lane; b < 64; b += kLanes) {
            const std::uint64_t bit = std::uint64_t{1} << b;
            if ((word & bit) == 0) continue;
            const std::uint64_t to = begin_ + before[w] + ones(word & (bit - 1)), from = begin_ + w * 64 + b;
            job_.offsets[to] = static_cast<std::uint16_t>(w * 64 + b);
            job_.values[to] = job_.residual[from];
            job_.residual[from] = 0;
            if (job_.velocity != nullptr) job_.velocity[from] = 0;
          }
        });
      }
    });
    block_.each(1, [&](std::uint32_t) {
      constexpr std::uint32_t kLast = 2 * SelectJob::kWords - 1;
      const std::uint32_t selected = before[SelectJob::kWords];
      job_.counts[block_.index()] = {.selected = selected,
                                     .lower = before[kLast] + ones(bits[kLast]) - selected};
    });
  }

  /// x and G of an element. There is none behind the last one.
  NZCL_ON_GPU Sums sums_at(std::uint32_t i) const {
    if (i >= elements_) return {};
    float kept = job_.fresh_residual ? 0.0F : job_.residual[begin_ + i];
    if (job_.scale != 1) kept *= job_.scale;
    float x = job_.gradient[begin_ + i] * factor_;
    if (job_.velocity != nullptr)
      x += job_.momentum * (job_.fresh_velocity ? 0.0F : job_.velocity[begin_ + i]);
    return {.x = x, .total = kept + x};
  }

  /// Keeps G and x, as if the element were not selected. Returns |G|.
  NZCL_ON_GPU std::uint32_t keep(std::uint32_t i, const Sums& sums) const {
    const std::uint32_t magnitude = magnitude_of(sums.total);
    job_.residual[begin_ + i] = sums.total;
    if (job_.velocity != nullptr) job_.velocity[begin_ + i] = sums.x;
    return magnitude;
  }

  /// Sets the bits of a row of lanes, from bit `first` on.
  NZCL_ON_GPU void set_row(std::uint32_t first, std::uint32_t row) {
    if (row == 0) return;
    const std::uint32_t shift = first % 64;
    block_.set(first / 64, std::uint64_t{row} << shift);
    if (shift > 64 - kLanes && std::uint64_t{row} >> (64 - shift) != 0)
      block_.set(first / 64 + 1, std::uint64_t{row} >> (64 - shift));
  }

  Block& block_;
  const SelectJob& job_;
  const std::uint64_t begin_;
  const float factor_;
  std::uint32_t elements_;
};

NZCL_ON_GPU inline double square_root(double x) {
#if defined(__CUDA__)
  return __nvvm_sqrt_rn_d(x);
#else
  return __builtin_sqrt(x);
#endif
}

/// The factor that brings the norm of the gradient down to the limit. If the norm is infinite or NaN, the
/// factor is 1.
template <typename Block>
NZCL_ON_GPU inline void clip(Block& block, const SelectJob& job) {
  constexpr std::uint64_t kAtOnce = 2048;
  auto* const shared = reinterpret_cast<double*>(block.words());
  double sum = 0;
  for (std::uint64_t first = 0; first < job.slices(); first += kAtOnce) {
    const std::uint64_t left = job.slices() - first;
    const auto count = static_cast<std::uint32_t>(left < kAtOnce ? left : kAtOnce);
    block.each(count, [&](std::uint32_t i) { shared[i] = job.squares[first + i]; });
    block.each(1, [&](std::uint32_t) {
      for (std::uint32_t i = 0; i < count; ++i) sum += shared[i];
    });
  }
  block.each(1, [&](std::uint32_t) {
    const double norm = square_root(sum);
    const bool finite = norm <= __DBL_MAX__;
    *job.factor = finite && norm > job.most_norm ? static_cast<float>(job.most_norm / norm) : 1.0F;
  });
}

/// Before the first round nothing is known. After each round some bits are: those of the bucket that has the
/// last of the wanted magnitudes. The counts are zeros again then.
template <typename Block>
NZCL_ON_GPU inline void rank(Block& block, const SelectJob& job) {
  RankSearch& search = *job.search;
  constexpr std::uint32_t kGroup = 64, kGroups = RankSearch::kBuckets / kGroup;
  std::uint64_t* const counts = block.words();
  std::uint64_t* const groups = counts + RankSearch::kBuckets;
  block.each(RankSearch::kBuckets, [&](std::uint32_t b) {
    counts[b] = search.counts[b];
    search.counts[b] = 0;
  });
  block.each(kGroups, [&](std::uint32_t g) {
    groups[g] = 0;
    for (std::uint32_t b = g * kGroup; b < (g + 1) * kGroup; ++b) groups[g] += counts[b];
  });
  block.each(1, [&](std::uint32_t) {
    if (job.round == 0) {
      search.found = {.ties = job.wanted, .equal = 0, .threshold = 0};
      return;
    }
    std::uint64_t wanted = search.found.ties;
    if (wanted == 0) return;  // there were too few
    std::uint32_t group = kGroups;
    while (group > 0 && groups[group - 1] < wanted) wanted -= groups[--group];
    if (group == 0) {
      search.found = {};
      return;
    }
    std::uint32_t bucket = group * kGroup;
    while (counts[bucket - 1] < wanted) wanted -= counts[--bucket];
    search.found.ties = wanted;
    search.found.equal = counts[bucket - 1];
    search.found.threshold |= (bucket - 1) << RankSearch::shift(job.round - 1);
  });
}

template <SelectPass kPass, typename Block>
NZCL_ON_GPU inline void run_pass(Block& block, const SelectJob& job) {
  if constexpr (kPass == SelectPass::clip) return clip(block, job);
  if constexpr (kPass == SelectPass::rank) return rank(block, job);
  Selection<Block> slice(block, job);
  if constexpr (kPass == SelectPass::put_back) slice.put_back();
  if constexpr (kPass == SelectPass::square) slice.square();
  if constexpr (kPass == SelectPass::measure) slice.measure();
  if constexpr (kPass == SelectPass::count) slice.count();
  if constexpr (kPass == SelectPass::select) slice.select();
}

}  // namespace nzcl::gpu
