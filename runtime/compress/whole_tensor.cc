#include "runtime/compress/whole_tensor.h"

namespace nzcl::compress {

CompressedGradient WholeTensor::compress(TensorState& state, std::span<const float> gradient, int rank,
                                         int ranks) {
  const std::size_t elements = state.layout().elements();
  if (!buffers_) {
    values_ = std::make_unique_for_overwrite<float[]>(elements);
    indices_ = std::make_unique_for_overwrite<std::int64_t[]>(elements);
    buffers_.emplace();
  }
  state.begin_step(gradient, rank, ranks);
  std::size_t sent = 0;
  const auto slices = state.layout().slices();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const SliceOutcome outcome =
        state.compress_slice(i, *buffers_, {values_.get() + sent, slices[i].elements});
    const auto begin = static_cast<std::int64_t>(slices[i].begin);
    for (std::size_t k = 0; k < outcome.sent; ++k) indices_[sent + k] = begin + buffers_->offsets[k];
    sent += outcome.sent;
  }
  state.end_step();
  return {.indices = {indices_.get(), sent}, .values = {values_.get(), sent}};
}

}  // namespace nzcl::compress
