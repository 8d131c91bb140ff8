#include "perf/scale/tensors.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/bitmap.h"
#include "runtime/base/mix.h"

namespace perf::scale {

using namespace nzcl;

Tensors::Tensors(const Shape& shape) : shape_(shape) {
  values_.resize(shape.elements + static_cast<std::size_t>(shape.ranks) * kStride);
  for (std::size_t i = 0; i < values_.size(); ++i)
    values_[i] = static_cast<float>(1 + mix(i ^ shape.seed << 40) % 1000);
  sum_.resize(shape.elements);
  bits_.resize(words_for(blocks()));
  for (int rank = 0; rank < shape.ranks; ++rank) add(rank);
}

std::uint64_t Tensors::blocks() const {
  return (shape_.elements + shape_.block_elements - 1) / shape_.block_elements;
}

bool Tensors::has(int rank, std::uint64_t block) const {
  if (is_dense()) return true;
  const std::uint64_t drawn_by = shape_.overlap == Overlap::all ? 0 : static_cast<std::uint64_t>(rank) + 1;
  const std::uint64_t drawn = mix(mix(shape_.seed ^ drawn_by << 32) ^ block);
  return static_cast<double>(drawn >> 11) * 0x1p-53 < shape_.density;
}

void Tensors::add(int rank) {
  const float* const from = values(rank);
  for (std::uint64_t block = 0; block < blocks(); ++block) {
    if (!has(rank, block)) continue;
    set_bit(std::span(bits_), block);
    const std::uint64_t begin = block * shape_.block_elements;
    const std::uint64_t end = std::min(begin + shape_.block_elements, shape_.elements);
    for (std::uint64_t i = begin; i < end; ++i) sum_[i] += from[i];
  }
}

std::vector<std::uint64_t> Tensors::bitmap(int rank) const {
  std::vector<std::uint64_t> bits(words_for(blocks()));
  for (std::uint64_t block = 0; block < blocks(); ++block) {
    if (has(rank, block)) set_bit(std::span(bits), block);
  }
  return bits;
}

double Tensors::union_density(std::span<const int> ranks) const {
  std::uint64_t held = 0;
  for (std::uint64_t block = 0; block < blocks(); ++block)
    held += std::ranges::any_of(ranks, [&](int rank) { return has(rank, block); }) ? 1 : 0;
  return static_cast<double>(held) / static_cast<double>(std::max<std::uint64_t>(1, blocks()));
}

std::uint64_t Tensors::wrong(std::span<const float> result, std::span<const std::uint64_t> bitmap) const {
  std::uint64_t wrong = std::ranges::equal(bitmap, bits_) ? 0 : 1;
  for (std::uint64_t i = 0; i < shape_.elements; ++i) wrong += result[i] == sum_[i] ? 0 : 1;
  return wrong;
}

}  // namespace perf::scale
