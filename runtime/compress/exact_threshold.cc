// How TensorState finds the threshold that the k largest magnitudes reach.
//
// Looking at all magnitudes of a large tensor three times, as MagnitudeRank does, takes ten times as long as
// selecting from them. So a small sample says first below which magnitude the k largest certainly do not end,
// as far as a sample can tell. One pass over the tensor collects the candidates above it, and only these are
// ranked. If the sample was wrong there are too few candidates, or more than there is room for, and then all
// magnitudes are ranked after all. Which of the two ways was taken makes no difference to what is found.
#include <algorithm>
#include <cmath>

#include "runtime/base/mix.h"
#include "runtime/compress/tensor_state.h"

namespace nzcl::compress {
namespace {

/// A sample consists of runs of kRun elements. Runs are short, because neighbours are alike in many tensors,
/// such as the rows of an embedding. There are at most kMostRuns of them.
constexpr std::size_t kRun = 4;
constexpr std::uint64_t kMostRuns = 4096;
static_assert(kMostRuns * kRun <= kMostSliceElements);
/// One run is taken out of every kElementsPerRun elements, or out of more if there would be more than
/// kMostRuns.
constexpr std::uint64_t kElementsPerRun = 256;
/// Smaller tensors stay in a cache, and a sample of them would be too small.
constexpr std::uint64_t kLeastElements = std::uint64_t{4} * kMostSliceElements;
/// If more than one in kLeastPerWanted elements is wanted, there is no sample, because most of the tensor
/// would be candidates.
constexpr std::uint64_t kLeastPerWanted = 8;
/// There is room for twice as many candidates as elements are wanted, and for this many in addition.
constexpr std::uint64_t kMoreCandidates = kMostSliceElements;

}  // namespace

/// Several magnitudes may be equal to the threshold, so that more than `wanted` reach it. If these are more
/// than `more`, only the first of the equal ones are sent.
void TensorState::find_exact_threshold(std::uint64_t wanted, std::uint64_t more) {
  if (!rank_candidates(wanted)) rank_all(wanted);
  const MagnitudeRank& rank = rank_of_magnitudes_;
  // If fewer than `wanted` elements are not zero, the threshold that was found is 0; all of these are sent,
  // but no zeros. If at least `wanted` elements are not finite, it lies above the finite numbers; the rules
  // send such elements in any case.
  threshold_ = std::clamp<MagnitudeBits>(rank.threshold(), 1, kInfinityBits);
  if (threshold_ == rank.threshold() && threshold_ < kInfinityBits && rank.equal() > rank.ties() + more)
    settle_ties(rank.ties());
}

/// A magnitude that is likely to be less than the `wanted` largest ones and not by much; 0 if there is none.
MagnitudeBits TensorState::likely_below(std::uint64_t wanted) noexcept {
  const std::uint64_t elements = layout_.elements();
  const std::uint64_t runs = std::min(kMostRuns, elements / kElementsPerRun);
  const std::uint64_t distance = elements / runs;
  for (std::uint64_t run = 0; run < runs; ++run) {
    // Not at equal distances, which might always meet the same column of a matrix.
    const std::uint64_t shift = hash32(0, static_cast<std::uint32_t>(run)) % (distance - kRun + 1);
    magnitudes(data_at(run * distance + shift, kRun, own_buffers_),
               std::span(magnitudes_).subspan(run * kRun, kRun));
  }
  const std::span<const MagnitudeBits> sample(magnitudes_.data(), runs * kRun);
  // `expected` is how many of the wanted elements are in the sample on average. The standard deviation would
  // be its square root if elements were independent, and twice that if the four elements of a run were alike.
  // Three standard deviations above the average are rarely exceeded.
  const double expected =
      static_cast<double>(wanted) * static_cast<double>(sample.size()) / static_cast<double>(elements);
  const auto place = static_cast<std::uint64_t>(std::ceil(expected + 6 * std::sqrt(expected))) + 8;
  rank_of_magnitudes_.find(place, sample);
  return rank_of_magnitudes_.threshold();
}

/// Ranks the `wanted` largest magnitudes among some that hold them for certain. Returns false if it found no
/// such candidates.
bool TensorState::rank_candidates(std::uint64_t wanted) {
  if (layout_.elements() < kLeastElements || wanted > layout_.elements() / kLeastPerWanted) return false;
  const MagnitudeBits least = likely_below(wanted);
  if (least == 0) return false;
  const std::uint64_t most = 2 * wanted + kMoreCandidates;
  // Behind the candidates of the slices before there is always room for a whole slice.
  candidates_.resize(std::max<std::size_t>(candidates_.size(), most + kMostSliceElements));
  candidate_ends_.clear();
  std::size_t count = 0;
  for (const Slice& slice : layout_.slices()) {
    count += magnitudes_from(data_of(slice, own_buffers_), least, std::span(candidates_).subspan(count));
    if (count > most) return false;
    candidate_ends_.push_back(count);
  }
  if (count < wanted) return false;
  rank_of_magnitudes_.find(wanted, std::span(candidates_).first(count));
  return true;
}

void TensorState::rank_all(std::uint64_t wanted) noexcept {
  candidate_ends_.clear();
  MagnitudeRank& rank = rank_of_magnitudes_;
  for (rank.begin(wanted); !rank.done(); rank.end_round()) {
    for (const Slice& slice : layout_.slices()) {
      const auto of_slice = std::span(magnitudes_).first(slice.elements);
      magnitudes(data_of(slice, own_buffers_), of_slice);
      rank.add(of_slice);
    }
  }
}

/// Of the elements whose magnitude equals the threshold, only the first `among_the_largest` are sent. Finds
/// the next such element, and sets up the rules so that it and all later ones are left out.
void TensorState::settle_ties(std::uint64_t among_the_largest) {
  std::size_t begin = 0;  // of the slice's candidates
  for (std::size_t index = 0; index < layout_.slices().size(); ++index) {
    const Slice& slice = layout_.slices()[index];
    if (!candidate_ends_.empty()) {
      const auto candidates = std::span(candidates_).subspan(begin, candidate_ends_[index] - begin);
      begin = candidate_ends_[index];
      const auto equal = static_cast<std::uint64_t>(std::ranges::count(candidates, threshold_));
      if (equal <= among_the_largest) {
        among_the_largest -= equal;
        continue;
      }
    }
    magnitudes(data_of(slice, own_buffers_), magnitudes_);
    for (std::size_t i = 0; i < slice.elements; ++i) {
      if (magnitudes_[i] != threshold_) continue;
      if (among_the_largest-- > 0) continue;
      tie_slice_ = index;
      tie_ends_ = {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(slice.elements)};
      tie_thresholds_ = {threshold_, threshold_ + 1};
      return;
    }
  }
}

}  // namespace nzcl::compress
