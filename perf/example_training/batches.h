// An endless stream of mini-batches from one rank's shard.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "perf/example_training/sampler.h"
#include "perf/example_training/vocabulary.h"

namespace train {

/// A centre word, the words around it, and words drawn at random as negative examples.
struct Example {
  WordId centre;
  std::span<const WordId> contexts;
  std::span<const WordId> negatives;
};

struct Batch {
  std::vector<WordId> centres;
  std::vector<WordId> contexts;
  std::vector<std::size_t> context_ends;  // where the contexts of each centre end
  std::vector<WordId> negatives;          // the same number for each centre

  std::size_t size() const { return centres.size(); }
  Example example(std::size_t i) const;
  void clear();
};

struct BatchSettings {
  std::size_t words = 1024;  ///< centres per batch, on this rank
  std::uint32_t window = 5;  ///< words on each side at most; drawn anew for each centre from 1 .. window
  std::uint32_t negatives = 5;
};

/// Reads the paragraphs in an order that is shuffled anew for each pass, and leaves out frequent words by
/// chance. The same seed gives the same batches. Keeps references: everything given must outlive it. One
/// thread.
class BatchStream {
 public:
  /// Throws std::runtime_error if the shard has no paragraph.
  BatchStream(const Corpus& shard, std::span<const float> keep, const AliasTable& negatives,
              const BatchSettings& settings, std::uint64_t seed);
  /// Valid until the next call.
  const Batch& next();

 private:
  void next_paragraph();
  void shuffle();
  void add_centre(std::size_t at);

  const Corpus& shard_;
  std::span<const float> keep_;
  const AliasTable& negatives_;
  BatchSettings settings_;
  Random random_;
  std::vector<std::size_t> order_;  // of paragraphs in this pass
  std::size_t next_in_order_ = 0;
  std::vector<WordId> paragraph_;  // the current one, without the words left out
  std::size_t next_in_paragraph_ = 0;
  Batch batch_;
};

}  // namespace train
