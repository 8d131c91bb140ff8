#include "runtime/compress/layout.h"

#include <algorithm>

namespace nzcl::compress {

Layout::Layout(std::span<const Layer> layers, std::uint32_t bin) : layers_(layers.begin(), layers.end()) {
  std::uint64_t most_bins = 0;
  for (const Layer& layer : layers_) {
    elements_ += layer.elements;
    if (bin > 0) most_bins += layer.elements / (layer.bin == 0 ? bin : layer.bin) + 1;
  }
  const std::uint64_t most_slices = elements_ / kMostSliceElements + 1;
  // All of it at once, so that there is an error at once if a tensor is too large for the memory.
  slices_.reserve(most_slices);
  segments_.reserve(most_slices + layers_.size());
  if (bin > 0) bin_ends_.reserve(most_bins + most_slices);
  std::size_t layer = 0;
  std::uint64_t layer_begin = 0;
  for (std::uint64_t begin = 0; begin < elements_; begin += kMostSliceElements) {
    const std::uint64_t end = std::min<std::uint64_t>(elements_, begin + kMostSliceElements);
    Slice slice{.begin = begin,
                .elements = static_cast<std::size_t>(end - begin),
                .first_bin = bin_ends_.size(),
                .first_segment = segments_.size()};
    for (std::uint64_t at = begin; at < end;) {
      while (layer_begin + layers_[layer].elements <= at) layer_begin += layers_[layer++].elements;
      const std::uint64_t until = std::min(end, layer_begin + layers_[layer].elements);
      const std::uint32_t own = layers_[layer].bin;
      add_segment(slice,
                  {.begin = static_cast<std::uint32_t>(at - begin),
                   .end = static_cast<std::uint32_t>(until - begin),
                   .layer = layer},
                  bin == 0 || own == 0 ? bin : own);
      at = until;
    }
    slices_.push_back(slice);
  }
}

void Layout::add_segment(Slice& slice, Segment segment, std::uint32_t bin) {
  segment.first_bin = slice.bins;
  if (bin != 0) {
    for (std::uint32_t at = segment.begin; at < segment.end; at += bin)
      bin_ends_.push_back(std::min(segment.end, at + bin));
    segment.bins = bin_ends_.size() - slice.first_bin - slice.bins;
  }
  slice.bins += segment.bins;
  segments_.push_back(segment);
  ++slice.segments;
}

}  // namespace nzcl::compress
