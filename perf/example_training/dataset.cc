#include "perf/example_training/dataset.h"

#include <algorithm>
#include <utility>

#include "perf/example_training/text.h"

namespace train {
namespace {

constexpr std::size_t kHeldOutWords =
    4000;  // enough pairs for a mean loss that is precise to about a hundredth

std::string words_of(const Settings& settings) {
  const std::string text = read_text(settings.text);
  return plain_words(std::string_view(text).substr(0, settings.text_bytes));
}

}  // namespace

Dataset::Dataset(const Settings& settings) : Dataset(words_of(settings), settings) {}

Dataset::Dataset(const std::string& words, const Settings& settings)
    : vocabulary_(words, settings.min_count),
      keep_(keep_probabilities(vocabulary_, settings.subsample)),
      negatives_(negative_table(vocabulary_)),
      corpus_(encode(words, vocabulary_)) {}

void Dataset::keep_shard(int rank, int size) {
  shards_ = deal(corpus_, rank, size);
  corpus_ = {};
}

BatchStream Dataset::batches(const BatchSettings& settings, std::uint64_t seed) const {
  return BatchStream(shards_.mine, keep_, negatives_, settings, seed);
}

Batch Dataset::held_out(const BatchSettings& settings, std::uint64_t seed) const {
  BatchSettings sample = settings;
  sample.words = std::min(kHeldOutWords, shards_.held_out.words.size());
  return BatchStream(shards_.held_out, keep_, negatives_, sample, seed).next();
}

std::uint64_t Dataset::steps(double epochs, std::size_t words_per_step) const {
  double kept = 0;
  for (std::size_t word = 0; word < keep_.size(); ++word)
    kept += static_cast<double>(keep_[word]) * static_cast<double>(vocabulary_.counts()[word]);
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(epochs * kept / static_cast<double>(words_per_step)));
}

}  // namespace train
