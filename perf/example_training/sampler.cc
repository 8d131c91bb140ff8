#include "perf/example_training/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace train {

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

AliasTable::AliasTable(std::span<const double> weights) : columns_(weights.size()) {
  const double mean =
      std::accumulate(weights.begin(), weights.end(), 0.0) / static_cast<double>(weights.size());
  std::vector<double> height(weights.size());
  std::vector<std::uint32_t> small, large;
  for (std::uint32_t i = 0; i < weights.size(); ++i) {
    height[i] = weights[i] / mean;
    (height[i] < 1 ? small : large).push_back(i);
  }
  // Fill each column that is too low with a piece of one that is too high.
  while (!small.empty() && !large.empty()) {
    const std::uint32_t low = small.back(), high = large.back();
    small.pop_back();
    columns_[low] = {height[low], high};
    height[high] -= 1 - height[low];
    if (height[high] < 1) {
      large.pop_back();
      small.push_back(high);
    }
  }  // what is left over is 1 but for rounding, as the columns' default says
}

std::uint32_t AliasTable::draw(Random& random) const {
  const std::uint32_t column = random.below(static_cast<std::uint32_t>(columns_.size()));
  return random.uniform() < columns_[column].own ? column : columns_[column].alias;
}

AliasTable negative_table(const Vocabulary& vocabulary) {
  std::vector<double> weights;
  for (const std::uint64_t count : vocabulary.counts())
    weights.push_back(std::pow(static_cast<double>(count), 0.75));
  return AliasTable(weights);
}

std::vector<float> keep_probabilities(const Vocabulary& vocabulary, double threshold) {
  std::vector<float> keep;
  for (const std::uint64_t count : vocabulary.counts()) {
    const double ratio = threshold * static_cast<double>(vocabulary.total()) / static_cast<double>(count);
    keep.push_back(static_cast<float>(std::min(1.0, std::sqrt(ratio) + ratio)));
  }
  return keep;
}

}  // namespace train
