// The text, prepared for one rank.
#pragma once

#include <vector>

#include "perf/train/batches.h"
#include "perf/train/sampler.h"
#include "perf/train/settings.h"
#include "perf/train/vocabulary.h"

namespace train {

/// Every rank reads the whole text, which takes a second or two, and so has the same vocabulary without
/// asking anyone. Immutable after construction.
class Dataset {
 public:
  explicit Dataset(const Settings& settings);
  /// Keeps this rank's shard and the held-out sample, and drops the rest.
  void keep_shard(int rank, int size);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  BatchStream batches(const BatchSettings& settings, std::uint64_t seed) const;
  /// Pairs that nobody trains on, the same on every rank: to measure the loss.
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
