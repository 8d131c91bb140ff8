// Checks whether the model has learned anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/example_training/model.h"
#include "perf/example_training/vocabulary.h"

namespace train {

struct Neighbour {
  WordId word;
  float cosine;
};

/// Cosines between input rows. Copies and normalises the weights once; immutable afterwards.
class Similarity {
 public:
  explicit Similarity(const Model& model);
  float cosine(WordId a, WordId b) const;
  /// The nearest words, nearest first, without the word itself.
  std::vector<Neighbour> nearest(WordId word, std::size_t count) const;
  /// How many words are nearer to `word` than `other` is.
  std::size_t rank(WordId word, WordId other) const;

 private:
  Table unit_;  // rows of length 1
};

/// Words that belong together (gold and silver, north and south) against the same words paired wrongly. The
/// control has the same words, hence the same frequencies: only their pairing is different.
struct RelatedWords {
  std::size_t pairs = 0;      ///< of the built-in list whose words are in the vocabulary
  double related_cosine = 0;  ///< mean
  double control_cosine = 0;  ///< mean
  double median_rank = 0;     ///< of the partner among all words, 0 = nearest; both directions
};
RelatedWords related_words(const Similarity& similarity, const Vocabulary& vocabulary);

/// What a run must reach. quality.cc says where the numbers come from.
struct Requirements {
  double held_out_drop;      ///< share of the initial held-out loss that must be gone
  double cosine_margin;      ///< related_cosine - control_cosine
  double median_rank_share;  ///< of the vocabulary
  std::size_t min_pairs;     ///< with fewer known pairs the two checks of words are skipped
};
Requirements full_run_requirements();
Requirements quick_run_requirements();

struct Quality {
  double initial_loss = 0;  ///< held out, per pair
  double final_loss = 0;
  RelatedWords words;
};
/// The requirements that were missed, as sentences. Empty if the model is good.
std::vector<std::string> shortcomings(const Quality& quality, std::size_t vocabulary,
                                      const Requirements& required);

}  // namespace train
