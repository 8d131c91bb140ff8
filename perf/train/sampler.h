// Seeded chance: which words are skipped, and which ones serve as negative examples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "perf/train/vocabulary.h"

namespace train {

/// SplitMix64 (Steele, Lea and Flood 2014): small, and the same numbers on every machine, unlike the standard
/// library's distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  ///< [0, 1)
  /// 0 .. bound-1, bound > 0 and far below 2^32: the bias of the short multiplication is then nothing.
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32);
  }

 private:
  std::uint64_t state_;
};

/// Draws i with probability weights[i] / sum in constant time: Walker's alias method, built as by Vose
/// (1991).
class AliasTable {
 public:
  explicit AliasTable(std::span<const double> weights);
  std::uint32_t draw(Random& random) const;

 private:
  struct Column {
    double own = 1;           // probability that the column's own number is drawn
    std::uint32_t alias = 0;  // otherwise this one
  };
  std::vector<Column> columns_;
};

/// Negative examples: word counts to the power 0.75 (Mikolov et al. 2013).
AliasTable negative_table(const Vocabulary& vocabulary);

/// Probability that an occurrence of each word is kept, with f its share of the text and t = threshold:
/// sqrt(t / f) + t / f, at most 1, as in the authors' program. Frequent words say little about their
/// neighbours.
std::vector<float> keep_probabilities(const Vocabulary& vocabulary, double threshold);

}  // namespace train
