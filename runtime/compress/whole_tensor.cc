#include "runtime/compress/whole_tensor.h"

namespace nzcl::compress {

CompressedGradient WholeTensor::compress(TensorState& state, std::span<const float> gradient, int rank,
                                         int ranks) {
  const std::size_t elements = state.layout().elements();
  if (!buffers_) {
    values_ = std::make_unique_for_overwrite<float[]>(elements);
    indices_ = std::make_unique_for_overwrite<std::int64_t[]>(elements);
    offsets_ = std::make_unique_for_overwrite<std::uint16_t[]>(kMostSliceElements);
    buffers_.emplace();
  }
  state.begin_step(gradient, rank, ranks);
  std::size_t sent = 0;
  const auto slices = state.layout().slices();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::span values(values_.get() + sent, slices[i].elements);
    const std::size_t count = state.select_slice(i, *buffers_, {offsets_.get(), slices[i].elements}, values);
    const std::span<const std::uint16_t> offsets(offsets_.get(), count);
    if (!state.codes_after_all()) state.code_slice(i, *buffers_, offsets, values.first(count));
    const auto begin = static_cast<std::int64_t>(slices[i].begin);
    for (std::size_t k = 0; k < count; ++k) indices_[sent + k] = begin + offsets[k];
    sent += count;
  }
  if (state.codes_after_all()) code_all(state);
  state.end_step();
  return {.indices = {indices_.get(), sent}, .values = {values_.get(), sent}};
}

void WholeTensor::code_all(TensorState& state) {
  state.end_selection();
  std::size_t first = 0;
  const auto slices = state.layout().slices();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::size_t count = state.outcome(i).sent;
    const std::span offsets(offsets_.get(), count);
    for (std::size_t k = 0; k < count; ++k)
      offsets[k] =
          static_cast<std::uint16_t>(indices_[first + k] - static_cast<std::int64_t>(slices[i].begin));
    state.code_slice(i, *buffers_, offsets, {values_.get() + first, count});
    first += count;
  }
}

}  // namespace nzcl::compress
