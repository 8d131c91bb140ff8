// Seeded random numbers decide which words are skipped, and which ones serve as negative examples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "perf/example_training/vocabulary.h"

namespace train {

/// SplitMix64 (Steele, Lea and Flood 2014). It gives the same numbers on every machine, which the standard
/// library's distributions do not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  ///< [0, 1)
  /// A number from 0 to bound - 1. The bound must be above 0, and far below 2^32 for the bias to be
  /// negligible.
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
