// How TensorState codes the values of a slice, and what stays in the residual.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "runtime/base/mix.h"
#include "runtime/compress/qsgd.h"
#include "runtime/compress/select.h"
#include "runtime/compress/tensor_state.h"
#include "runtime/kernels/index_codec.h"
#include "runtime/kernels/narrow.h"

namespace nzcl::compress {
namespace {

QsgdFormat format_of(const Qsgd& codec) { return {.bits = codec.bits, .bucket = codec.bucket}; }

void make_narrow(const Narrow& codec, SliceBuffers& buffers, std::span<float> values) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(buffers.codes.data());
  narrow(codec.type, values.data(), values.size(), halves);
  widen(codec.type, halves, values.size(), values.data());
}

/// Writes the scales of the buckets to `scales`.
void make_qsgd(const Qsgd& codec, std::uint64_t key, SliceBuffers& buffers, std::span<float> values,
               float* scales) {
  const auto coded = std::span(buffers.codes).first(qsgd_bytes(format_of(codec), values.size()));
  qsgd_encode(format_of(codec), values, key, coded);
  std::memcpy(scales, coded.data(), sizeof(float) * qsgd_buckets(format_of(codec), values.size()));
  [[maybe_unused]] const bool good = qsgd_decode(format_of(codec), coded, values);
  assert(good);
}

/// Calls each(segment, first, last) for every segment of the slice: of the values at `offsets`, those in
/// [first, last) belong to it.
template <class Each>
void for_each_segment(const Layout& layout, const Slice& slice, std::span<const std::uint16_t> offsets,
                      Each each) {
  std::size_t first = 0;
  for (const Segment& segment : layout.segments(slice)) {
    const bool to_the_end = segment.end == slice.elements;
    const auto end = to_the_end ? offsets.end() : std::ranges::lower_bound(offsets, segment.end);
    const auto last = static_cast<std::size_t>(end - offsets.begin());
    each(segment, first, last);
    first = last;
  }
}

}  // namespace

double TensorState::scale_of(const Slice& slice, const Segment& segment,
                             std::span<const float> values) const noexcept {
  double sum = 0;
  std::size_t count = 0;
  if (std::holds_alternative<AdaComp>(compressor_.selection)) {
    if (codes_after_all_) return layer_scales_[segment.layer];
    for (const MagnitudeBits maximum :
         std::span(bin_thresholds_).subspan(slice.first_bin + segment.first_bin, segment.bins))
      sum += double{std::bit_cast<float>(maximum)};
    count = segment.bins;
  } else {
    for (const float value : values) {
      if (!std::isfinite(value)) continue;
      sum += std::fabs(double{value});
      ++count;
    }
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

void TensorState::make_ternary(const Slice& slice, std::span<const std::uint16_t> offsets,
                               std::span<float> values, SliceOutcome& outcome) const noexcept {
  for_each_segment(layout_, slice, offsets, [&](const Segment& segment, std::size_t first, std::size_t last) {
    if (first == last) return;
    const auto of_segment = values.subspan(first, last - first);
    const auto scale = static_cast<float>(scale_of(slice, segment, of_segment));
    to_sign_and_scale(of_segment, scale);
    outcome.scales += double{scale};
    ++outcome.scale_count;
  });
}

void TensorState::code_values(std::size_t index, SliceBuffers& buffers,
                              std::span<const std::uint16_t> offsets, std::span<float> values,
                              SliceOutcome& outcome) noexcept {
  const Slice& slice = layout_.slices()[index];
  std::ranges::copy(values, buffers.before.begin());
  if (std::holds_alternative<Ternary>(compressor_.values)) {
    make_ternary(slice, offsets, values, outcome);
  } else if (const auto* thin = std::get_if<Narrow>(&compressor_.values)) {
    make_narrow(*thin, buffers, values);
  } else if (const auto* qsgd = std::get_if<Qsgd>(&compressor_.values)) {
    const std::uint64_t key =
        make_key(compressor_.seed, state_.steps, index, 1 + static_cast<std::uint64_t>(rank_));
    make_qsgd(*qsgd, key, buffers, values, scales_.get() + index * most_scales_);
  }
  if (feeds_back() && !residual_.empty())
    feed_back(offsets, buffers.before, values, residual_.data() + slice.begin);
}

bool TensorState::feeds_back() const {
  const auto* const qsgd = std::get_if<Qsgd>(&compressor_.values);
  return compressor_.residual && !std::holds_alternative<AsIs>(compressor_.values) &&
         (qsgd == nullptr || qsgd->feedback);
}

std::span<const float> TensorState::scales(std::size_t index) const {
  const auto* const qsgd = std::get_if<Qsgd>(&compressor_.values);
  if (qsgd == nullptr) return {};
  return {scales_.get() + index * most_scales_, qsgd_buckets(format_of(*qsgd), outcomes_[index].sent)};
}

std::size_t TensorState::coded_bytes(const Slice& slice, std::span<const std::uint16_t> offsets,
                                     const SliceOutcome& outcome) const noexcept {
  if (outcome.sent == 0) return 0;
  std::size_t scales = 0;
  for_each_segment(layout_, slice, offsets, [&](const Segment&, std::size_t first, std::size_t last) {
    scales += last > first ? 4 : 0;
  });
  std::size_t indices = std::min(
      {bitmap_bytes(slice.elements), offsets_bytes(outcome.sent), rice_bytes(offsets, slice.elements)});
  const bool all_know = std::holds_alternative<RandomK>(compressor_.selection) && outcome.non_finite == 0;
  if (outcome.sent == slice.elements || all_know) indices = 0;
  if (std::holds_alternative<Ternary>(compressor_.values)) return indices + scales + (outcome.sent + 7) / 8;
  if (std::holds_alternative<Narrow>(compressor_.values)) return indices + 2 * outcome.sent;
  if (const auto* qsgd = std::get_if<Qsgd>(&compressor_.values))
    return indices + qsgd_bytes(format_of(*qsgd), outcome.sent);
  return indices + 4 * outcome.sent;
}

}  // namespace nzcl::compress
