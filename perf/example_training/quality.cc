#include "perf/example_training/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "perf/example_training/vector_math.h"

namespace train {
namespace {

using WordPair = std::pair<std::string_view, std::string_view>;

/// The control pairs each first word with a second word half the list away, so pairs at that distance must
/// not belong together.
constexpr std::array kRelated = std::to_array<WordPair>({
    {"gold", "silver"},   {"north", "south"},    {"red", "yellow"},     {"oxygen", "hydrogen"},
    {"king", "queen"},    {"february", "march"}, {"bird", "fish"},      {"latin", "greek"},
    {"ship", "vessel"},   {"wheat", "barley"},   {"father", "mother"},  {"verb", "noun"},
    {"copper", "zinc"},   {"leg", "foot"},       {"sheep", "goat"},     {"church", "bishop"},
    {"sugar", "starch"},  {"army", "troops"},    {"eye", "ear"},        {"wine", "beer"},
    {"sun", "moon"},      {"music", "melody"},   {"oak", "pine"},       {"acid", "alkali"},
    {"judge", "court"},   {"muscle", "nerve"},   {"river", "lake"},     {"triangle", "circle"},
    {"horse", "mule"},    {"silk", "wool"},      {"petals", "sepals"},  {"gun", "cannon"},
    {"summer", "winter"}, {"angry", "anger"},    {"bread", "flour"},    {"sulphur", "phosphorus"},
    {"lion", "tiger"},    {"east", "west"},      {"house", "building"}, {"blood", "veins"},
    {"earth", "planet"},  {"money", "debt"},     {"rain", "snow"},      {"france", "italy"},
    {"wheel", "axle"},    {"leaf", "leaves"},    {"boy", "girl"},       {"heat", "temperature"},
});

double mean_cosine(const Similarity& similarity, const std::vector<std::pair<WordId, WordId>>& pairs,
                   std::size_t shift) {
  double sum = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i)
    sum += similarity.cosine(pairs[i].first, pairs[(i + shift) % pairs.size()].second);
  return sum / static_cast<double>(pairs.size());
}

double median_rank(const Similarity& similarity, const std::vector<std::pair<WordId, WordId>>& pairs) {
  std::vector<std::size_t> ranks;
  for (const auto& [a, b] : pairs) {
    ranks.push_back(similarity.rank(a, b));
    ranks.push_back(similarity.rank(b, a));
  }
  std::nth_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(ranks.size() / 2), ranks.end());
  return static_cast<double>(ranks[ranks.size() / 2]);
}

}  // namespace

Similarity::Similarity(const Model& model) : unit_(model.input.rows, model.input.dim) {
  for (std::size_t r = 0; r < unit_.rows; ++r) {
    const auto from = model.input.row(r);
    const float length = std::sqrt(dot(from, from));
    if (length > 0) add_scaled(unit_.row(r), 1 / length, from);
  }
}

float Similarity::cosine(WordId a, WordId b) const { return dot(unit_.row(a), unit_.row(b)); }

std::vector<Neighbour> Similarity::nearest(WordId word, std::size_t count) const {
  std::vector<Neighbour> all;
  for (WordId other = 0; other < unit_.rows; ++other)
    if (other != word) all.push_back({other, cosine(word, other)});
  count = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                    [](const Neighbour& a, const Neighbour& b) { return a.cosine > b.cosine; });
  all.resize(count);
  return all;
}

std::size_t Similarity::rank(WordId word, WordId other) const {
  const float reference = cosine(word, other);
  std::size_t nearer = 0;
  for (WordId w = 0; w < unit_.rows; ++w) nearer += w != word && w != other && cosine(word, w) > reference;
  return nearer;
}

RelatedWords related_words(const Similarity& similarity, const Vocabulary& vocabulary) {
  std::vector<std::pair<WordId, WordId>> known;
  for (const auto& [a, b] : kRelated) {
    const auto first = vocabulary.find(a), second = vocabulary.find(b);
    if (first && second) known.emplace_back(*first, *second);
  }
  RelatedWords result{.pairs = known.size()};
  if (known.empty()) return result;
  result.related_cosine = mean_cosine(similarity, known, 0);
  result.control_cosine = mean_cosine(similarity, known, known.size() / 2);
  result.median_rank = median_rank(similarity, known);
  return result;
}

// The requirements lie between what good runs reach and what a model reaches that knows no more than how
// frequent each word is. perf/results/training.md has the measurements.
Requirements full_run_requirements() {
  return {.held_out_drop = 0.38, .cosine_margin = 0.25, .median_rank_share = 0.01, .min_pairs = 20};
}

Requirements quick_run_requirements() {
  return {.held_out_drop = 0.32, .cosine_margin = 0.15, .median_rank_share = 0.15, .min_pairs = 20};
}

std::vector<std::string> shortcomings(const Quality& quality, std::size_t vocabulary,
                                      const Requirements& required) {
  std::vector<std::string> found;
  const double drop = 1 - quality.final_loss / quality.initial_loss;
  if (!(drop >= required.held_out_drop))  // also true for NaN
    found.push_back(
        fmt::format("the held-out loss went from {:.3f} to {:.3f}: {:.0f} % are gone, {:.0f} % must be",
                    quality.initial_loss, quality.final_loss, 100 * drop, 100 * required.held_out_drop));
  const RelatedWords& words = quality.words;
  if (words.pairs < required.min_pairs) return found;
  const double margin = words.related_cosine - words.control_cosine;
  if (!(margin >= required.cosine_margin))
    found.push_back(fmt::format(
        "the mean cosine of related words is {:.3f}, that of unrelated words {:.3f}: the difference "
        "must be {:.2f} or more",
        words.related_cosine, words.control_cosine, required.cosine_margin));
  const double share = words.median_rank / static_cast<double>(vocabulary);
  if (!(share <= required.median_rank_share))
    found.push_back(fmt::format(
        "half of the related words have more than {:.0f} words between them, {:.1f} % of the vocabulary: "
        "it must be {:.1f} % or less",
        words.median_rank, 100 * share, 100 * required.median_rank_share));
  return found;
}

}  // namespace train
