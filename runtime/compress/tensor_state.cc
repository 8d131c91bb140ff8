#include "runtime/compress/tensor_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/base/mix.h"
#include "runtime/compress/check.h"

namespace nzcl::compress {
namespace {

/// The number of stages in which the ratio comes down during the warm-up.
constexpr int kWarmUpStages = 4;
/// A streaming top-k may send one further element for every kTiesPerWanted that are wanted, if it is equal to
/// the smallest of them.
constexpr std::uint64_t kTiesPerWanted = 16;

MagnitudeBits bits_of(float magnitude) { return std::bit_cast<MagnitudeBits>(std::fabs(magnitude)); }
/// The threshold as a rule wants it: at least the smallest number that is not 0.
MagnitudeBits threshold_bits(float threshold) { return std::max<MagnitudeBits>(1, bits_of(threshold)); }

/// The size of the bins that the selection needs; 0 if it needs none.
std::uint32_t bin_of(const Selection& selection) {
  if (const auto* adacomp = std::get_if<AdaComp>(&selection)) return adacomp->bin;
  if (const auto* blocks = std::get_if<BlockTopK>(&selection)) return blocks->block;
  return 0;
}

/// Whether values are coded with a scale that is known when all slices are selected.
bool scales_of_layers(const Compressor& compressor) {
  const auto* adacomp = std::get_if<AdaComp>(&compressor.selection);
  return adacomp != nullptr && adacomp->exact_scale && std::holds_alternative<Ternary>(compressor.values);
}

/// `ratio` of `count`, rounded, but at least 1 of a count that is not 0.
std::uint64_t share_of(double ratio, std::uint64_t count) {
  const auto share = static_cast<std::uint64_t>(std::llround(ratio * static_cast<double>(count)));
  return std::clamp<std::uint64_t>(share, std::min<std::uint64_t>(1, count), count);
}

}  // namespace

SliceBuffers::SliceBuffers()
    : before(kMostSliceElements), codes(2 * kMostSliceElements), no_residual(kMostSliceElements) {}

TensorState::TensorState(const Compressor& compressor, std::span<const Layer> layers, Arrays arrays)
    : compressor_(compressor),
      layout_(layers, bin_of(compressor.selection)),
      codes_after_all_(scales_of_layers(compressor)),
      residual_(compressor.residual && arrays == Arrays::here ? layout_.elements() : 0),
      velocity_(compressor.momentum > 0 && arrays == Arrays::here ? layout_.elements() : 0),
      result_residual_(codes_results(compressor) && compressor.residual ? layout_.elements() : 0),
      outcomes_(layout_.slices().size()),
      bin_thresholds_(layout_.bins()),
      layer_scales_(layout_.layers().size()),
      magnitudes_(std::min<std::uint64_t>(kMostSliceElements, layout_.elements())) {
  if (const auto* const qsgd = std::get_if<Qsgd>(&compressor.values)) {
    most_scales_ = (kMostSliceElements + qsgd->bucket - 1) / qsgd->bucket;
    scales_ = std::make_unique_for_overwrite<float[]>(most_scales_ * layout_.slices().size());
  }
}

void TensorState::reset() noexcept {
  std::ranges::fill(residual_, 0.0f);
  std::ranges::fill(velocity_, 0.0f);
  std::ranges::fill(result_residual_, 0.0f);
  std::ranges::fill(outcomes_, SliceOutcome());
  state_ = {};
}

SliceData TensorState::data_at(std::uint64_t begin, std::size_t elements, SliceBuffers& buffers) noexcept {
  SliceData data{.gradient = gradient_.data() + begin,
                 .elements = elements,
                 .factor = factor_,
                 .momentum = compressor_.momentum};
  if (residual_.empty()) {
    std::fill_n(buffers.no_residual.begin(), elements, 0.0f);
    data.residual = buffers.no_residual.data();
  } else {
    data.residual = residual_.data() + begin;
  }
  if (!velocity_.empty()) data.velocity = velocity_.data() + begin;
  return data;
}

SliceData TensorState::data_of(const Slice& slice, SliceBuffers& buffers) noexcept {
  return data_at(slice.begin, slice.elements, buffers);
}

// ---- Before the slices

void TensorState::begin_step(std::span<const float> gradient, int rank, int ranks) {
  if (gradient.size() != layout_.elements()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the gradient has {} elements, and the state was made for {}", gradient.size(),
                            layout_.elements()));
  }
  if (compressor_.non_finite == NonFinite::error) {
    const std::size_t bad = find_non_finite(gradient);
    if (bad < gradient.size())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("element {} of the gradient is {}", bad, gradient[bad]));
  }
  gradient_ = gradient;
  rank_ = rank;
  factor_ = 1;
  if (compressor_.clip > 0) factor_ = static_cast<float>(clipping(ranks));
  std::visit([this](const auto& selection) { prepare(selection); }, compressor_.selection);
}

double TensorState::most_norm(int ranks) const {
  return static_cast<double>(compressor_.clip) / std::sqrt(static_cast<double>(ranks));
}

/// The factor that brings the norm of the gradient down to the limit. If the norm is infinite or NaN, the
/// factor is 1: scaling would hide from the user that the gradient is broken.
double TensorState::clipping(int ranks) const {
  const double norm = std::sqrt(sum_of_squares(gradient_)), most = most_norm(ranks);
  return std::isfinite(norm) && norm > most ? most / norm : 1.0;
}

double TensorState::ratio_now(double ratio) const {
  if (state_.steps >= compressor_.warm_up) return ratio;
  const auto stage = static_cast<double>(state_.steps * kWarmUpStages / compressor_.warm_up);
  return std::pow(ratio, (stage + 1) / (kWarmUpStages + 1));
}

void TensorState::prepare(const AdaComp&) {}

/// Says whether this step finds its threshold exactly, and sets it if not.
void TensorState::plan(const TopK& selection) {
  wanted_ = share_of(ratio_now(selection.ratio), layout_.elements());
  found_exactly_ = selection.exact || state_.steps < kSettlingSteps || state_.threshold.next == 0 ||
                   state_.since_exact >= selection.refresh || state_.wanted != wanted_;
  tie_slice_ = layout_.slices().size();
  more_ties_ = selection.exact ? 0 : wanted_ / kTiesPerWanted;
  if (!found_exactly_) threshold_ = threshold_bits(state_.threshold.next);
}

void TensorState::prepare(const TopK& selection) {
  plan(selection);
  if (found_exactly_) find_exact_threshold(wanted_, more_ties_);
  if (!selection.exact) lower_threshold_ = threshold_bits(std::bit_cast<float>(threshold_) * kLowerShare);
}

void TensorState::prepare(const Threshold& selection) { threshold_ = threshold_bits(selection.value); }

void TensorState::prepare(const RandomK& selection) { draw_below_ = draw_below(ratio_now(selection.ratio)); }

/// Turns the choice of blocks into thresholds for their elements: in the chosen blocks every number but 0
/// reaches the threshold, in the others only NaN and infinity do.
void TensorState::prepare(const BlockTopK& selection) {
  measure_bins();
  rank_of_magnitudes_.find(wanted_blocks(selection), bin_thresholds_);
  threshold_ = rank_of_magnitudes_.threshold();
  std::uint64_t ties = rank_of_magnitudes_.ties();
  for (MagnitudeBits& bin : bin_thresholds_) {
    const bool tie = bin == threshold_ && ties > 0;
    if (tie) --ties;
    bin = tie || bin > threshold_ ? 1 : kInfinityBits;
  }
}

std::uint64_t TensorState::wanted_blocks(const BlockTopK& selection) const {
  return share_of(ratio_now(selection.ratio), bin_thresholds_.size());
}

void TensorState::prepare(const Everything&) { threshold_ = 1; }

void TensorState::measure_bins() noexcept {
  for (const Slice& slice : layout_.slices()) {
    bin_maxima(data_of(slice, own_buffers_), {layout_.bin_ends(slice)}, thresholds_of(slice));
  }
}

// ---- What all ranks draw

std::uint64_t TensorState::draw_below(double ratio) {
  return static_cast<std::uint64_t>(std::llround(ratio * 0x1p32));
}

std::uint64_t TensorState::key_of_draw(std::uint64_t step, std::size_t index) const {
  return make_key(compressor_.seed, step, index, 0);
}

std::uint64_t TensorState::draw_key() const {
  const auto* const random = std::get_if<RandomK>(&compressor_.selection);
  if (random == nullptr) return 0;
  return make_key(compressor_.seed, state_.steps, draw_below(ratio_now(random->ratio)), 1);
}

std::size_t TensorState::draw(std::uint64_t step, std::size_t index, std::uint32_t begin, std::uint32_t end,
                              std::span<std::uint16_t> offsets) const noexcept {
  const std::uint64_t key = key_of_draw(step, index);
  std::size_t count = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    if (hash32(key, i) < draw_below_) offsets[count++] = static_cast<std::uint16_t>(i - begin);
  }
  return count;
}

// ---- One slice

/// The rule of all selections but AdaComp's, which has a kernel of its own.
Rule TensorState::rule_of(std::size_t index) const {
  struct Visitor {
    const TensorState& s;
    std::size_t index;
    Rule operator()(const AdaComp&) const { return {}; }
    Rule operator()(const BlockTopK&) const {
      const Slice& slice = s.layout_.slices()[index];
      return {.kind = Rule::Kind::bin_threshold,
              .bins = {s.layout_.bin_ends(slice)},
              .bin_thresholds = std::span(s.bin_thresholds_).subspan(slice.first_bin, slice.bins)};
    }
    Rule operator()(const TopK& selection) const {
      if (index < s.tie_slice_)
        return {.threshold = s.threshold_, .lower_threshold = selection.exact ? 0 : s.lower_threshold_};
      if (index > s.tie_slice_) return {.threshold = s.threshold_ + 1};
      return {.kind = Rule::Kind::bin_threshold, .bins = {s.tie_ends_}, .bin_thresholds = s.tie_thresholds_};
    }
    Rule operator()(const Threshold&) const { return {.threshold = s.threshold_}; }
    Rule operator()(const Everything&) const { return {.threshold = s.threshold_}; }
    Rule operator()(const RandomK&) const {
      return {.kind = Rule::Kind::random,
              .key = s.key_of_draw(s.state_.steps, index),
              .draw_below = s.draw_below_};
    }
  };
  return std::visit(Visitor{*this, index}, compressor_.selection);
}

std::span<MagnitudeBits> TensorState::thresholds_of(const Slice& slice) noexcept {
  return std::span(bin_thresholds_).subspan(slice.first_bin, slice.bins);
}

std::size_t TensorState::select_slice(std::size_t index, SliceBuffers& buffers,
                                      std::span<std::uint16_t> offsets, std::span<float> values) noexcept {
  const Slice& slice = layout_.slices()[index];
  const SliceData data = data_of(slice, buffers);
  const Selected selected =
      std::holds_alternative<AdaComp>(compressor_.selection)
          ? select_adacomp(data, {layout_.bin_ends(slice)}, thresholds_of(slice), offsets, values)
          : select(data, rule_of(index), 0, words_for(slice.elements), offsets, values);
  outcomes_[index] = {.sent = selected.count, .lower = selected.count_lower};
  return selected.count;
}

/// Computes the mean of the bins' maxima for each layer. It adds in the order of the bins, because the sums
/// of floating-point numbers depend on the order, and all runs must give the same bits.
void TensorState::end_selection() noexcept {
  std::ranges::fill(layer_scales_, 0.0);
  std::size_t layer = 0, bins = 0;
  const auto end_layer = [&] {
    if (bins > 0) layer_scales_[layer] /= static_cast<double>(bins);
    bins = 0;
  };
  for (const Slice& slice : layout_.slices()) {
    for (const Segment& segment : layout_.segments(slice)) {
      if (segment.layer != layer) end_layer();
      layer = segment.layer;
      for (std::size_t i = 0; i < segment.bins; ++i) {
        layer_scales_[layer] +=
            double{std::bit_cast<float>(bin_thresholds_[slice.first_bin + segment.first_bin + i])};
      }
      bins += segment.bins;
    }
  }
  end_layer();
}

void TensorState::code_slice(std::size_t index, SliceBuffers& buffers, std::span<const std::uint16_t> offsets,
                             std::span<float> values) noexcept {
  SliceOutcome& outcome = outcomes_[index];
  // A narrower type makes infinities of what is beyond its range. Qsgd makes NaNs of a whole bucket, so only
  // the NaNs that it was given are counted.
  const bool narrows = std::holds_alternative<Narrow>(compressor_.values);
  if (!narrows) outcome.non_finite = count_non_finite(values);
  if (!std::holds_alternative<AsIs>(compressor_.values))
    code_values(index, buffers, offsets, values, outcome);
  if (narrows) outcome.non_finite = count_non_finite(values);
  outcome.coded_bytes = coded_bytes(layout_.slices()[index], offsets, outcome);
}

// ---- After the slices

/// What the slices of a step have come to.
ThresholdCounts TensorState::count_step() noexcept {
  ThresholdCounts counts;
  for (const SliceOutcome& outcome : outcomes_) {
    counts.reach += outcome.sent;
    counts.reach_lower += outcome.lower;
  }
  state_.sent_total += counts.reach;
  ++state_.steps;
  gradient_ = {};
  return counts;
}

void TensorState::end_step() noexcept {
  const ThresholdCounts counts = count_step();
  const auto* topk = std::get_if<TopK>(&compressor_.selection);
  if (topk == nullptr || topk->exact) return;
  state_.since_exact = found_exactly_ ? 1 : state_.since_exact + 1;
  state_.wanted = wanted_;
  // At these limits the threshold does not tell how large the magnitudes are: at 1 nearly all elements are 0,
  // and at infinity too many are not finite. Where many magnitudes are equal to it, it does not tell how many
  // reach one that is about as large. Then there is nothing to predict from.
  const bool among_equals = tie_slice_ < layout_.slices().size();
  if (threshold_ == 1 || threshold_ >= kInfinityBits || among_equals) return state_.threshold.lost();
  const float used = std::bit_cast<float>(threshold_);
  if (found_exactly_) {
    state_.threshold.found(used, state_.steps <= kSettlingSteps);
  } else {
    state_.threshold.predicted(used, wanted_, counts);
  }
}

// ---- A step elsewhere

TensorState::Elsewhere TensorState::begin_step_elsewhere(int rank) {
  rank_ = rank;
  if (const auto* const topk = std::get_if<TopK>(&compressor_.selection)) {
    plan(*topk);
    if (found_exactly_) return {.rule = {}, .wanted = wanted_, .more_ties = more_ties_};
    lower_threshold_ = threshold_bits(std::bit_cast<float>(threshold_) * kLowerShare);
    return {.rule = rule_of(0)};
  }
  if (const auto* const blocks = std::get_if<BlockTopK>(&compressor_.selection))
    return {.rule = {}, .wanted = wanted_blocks(*blocks)};
  std::visit([this](const auto& selection) { prepare(selection); }, compressor_.selection);
  return {.rule = rule_of(0), .key = make_key(compressor_.seed, state_.steps)};
}

void TensorState::selected_elsewhere(std::size_t index, const Selected& selected,
                                     std::span<const MagnitudeBits> maxima) noexcept {
  outcomes_[index] = {.sent = selected.count, .lower = selected.count_lower};
  std::ranges::copy(maxima, thresholds_of(layout_.slices()[index]).begin());
}

void TensorState::end_step_elsewhere(const FoundElsewhere& found) noexcept {
  if (std::holds_alternative<BlockTopK>(compressor_.selection)) {
    threshold_ = found.threshold;
  } else if (std::holds_alternative<TopK>(compressor_.selection) && found_exactly_) {
    threshold_ = std::clamp<MagnitudeBits>(found.threshold, 1, kInfinityBits);
    if (found.some_ties && threshold_ < kInfinityBits) tie_slice_ = 0;
  }
  end_step();
}

void TensorState::set_rate(float rate) noexcept {
  const float scale = state_.rate > 0 ? state_.rate / rate : 1.0f;
  state_.rate = rate;
  if (scale == 1.0f) return;
  for (float& kept : residual_) kept *= scale;
  for (float& lost : result_residual_) lost *= scale;
  state_.threshold.next *= scale;
  state_.threshold.last *= scale;
}

void TensorState::take_back(const CompressedGradient& sent) noexcept {
  if (residual_.empty()) return;
  for (std::size_t i = 0; i < sent.indices.size(); ++i) {
    if (std::isfinite(sent.values[i])) residual_[static_cast<std::size_t>(sent.indices[i])] += sent.values[i];
  }
}

void TensorState::add_result_errors(std::uint64_t begin, std::span<const std::uint16_t> offsets,
                                    std::span<float> sums) const noexcept {
  if (result_residual_.empty()) return;
  const float* const errors = result_residual_.data() + begin;
  for (std::size_t i = 0; i < offsets.size(); ++i) sums[i] += errors[offsets[i]];
}

void TensorState::keep_result_errors(std::uint64_t begin, std::span<const std::uint16_t> offsets,
                                     std::span<const float> sums, std::span<const float> coded) noexcept {
  if (!result_residual_.empty()) feed_back(offsets, sums, coded, result_residual_.data() + begin);
}

CompressionReport TensorState::report() const {
  CompressionReport r{.steps = state_.steps, .elements = layout_.elements(), .sent_total = state_.sent_total};
  double scales = 0;
  std::size_t scale_count = 0;
  for (const SliceOutcome& outcome : outcomes_) {
    r.sent += outcome.sent;
    r.non_finite += outcome.non_finite;
    r.coded_bytes += outcome.coded_bytes;
    scales += outcome.scales;
    scale_count += outcome.scale_count;
  }
  const auto ratio = [](double whole, std::uint64_t part) {
    return part > 0 ? whole / static_cast<double>(part) : 0.0;
  };
  r.element_ratio = ratio(static_cast<double>(r.elements), r.sent);
  r.coded_ratio = ratio(4.0 * static_cast<double>(r.elements), r.coded_bytes);
  r.residual_norm = std::sqrt(sum_of_squares(residual_));
  const Selection& s = compressor_.selection;
  if (std::holds_alternative<TopK>(s) || std::holds_alternative<Threshold>(s) ||
      std::holds_alternative<BlockTopK>(s))
    r.threshold = state_.steps > 0 ? std::bit_cast<float>(threshold_) : 0;
  if (scale_count > 0) r.scale = static_cast<float>(scales / static_cast<double>(scale_count));
  return r;
}

}  // namespace nzcl::compress
