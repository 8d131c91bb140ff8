// The text, prepared for one rank.
#pragma once

#include <vector>

#include "perf/example_training/batches.h"
#include "perf/example_training/sampler.h"
#include "perf/example_training/settings.h"
#include "perf/example_training/vocabulary.h"

namespace train {

/// Every rank reads the whole text, so all ranks have the same vocabulary without talking to each other.
class Dataset {
 public:
  explicit Dataset(const Settings& settings);
  /// Keeps this rank's shard and the held-out sample, and drops the rest.
  void keep_shard(int rank, int size);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  BatchStream batches(const BatchSettings& settings, std::uint64_t seed) const;
  /// Pairs that no rank trains on, the same on every rank. The loss is measured on them.
  Batch held_out(const BatchSettings& settings, std::uint64_t seed) const;
  /// Steps in `epochs` passes of `size` ranks.
  std::uint64_t steps(double epochs, std::size_t words_per_step) const;

 private:
  Dataset(const std::string& words, const Settings& settings);

  Vocabulary vocabulary_;
  std::vector<float> keep_;
  AliasTable negatives_;
  Corpus corpus_;
  Shards shards_;
};

}  // namespace train
