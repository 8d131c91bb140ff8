#include "perf/example_training/model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "perf/example_training/vector_math.h"

namespace train {
namespace {

/// log(1 + exp(x)) without overflow; -log s(x) = softplus(-x).
float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }
float logistic(float x) { return 1.0f / (1.0f + std::exp(-x)); }

bool is_context(const Example& example, WordId word) {
  return std::find(example.contexts.begin(), example.contexts.end(), word) != example.contexts.end();
}

/// Calls visit(word, score, is_true, weight) for each context and each negative of an example. A negative
/// that happens to be a context is left out.
template <typename Visit>
void for_each_score(const Model& model, const Example& example, Visit visit) {
  const auto centre = model.input.row(example.centre);
  for (const WordId word : example.contexts) visit(word, dot(centre, model.output.row(word)), true, 1.0f);
  const float weight = static_cast<float>(example.contexts.size());
  for (const WordId word : example.negatives)
    if (!is_context(example, word)) visit(word, dot(centre, model.output.row(word)), false, weight);
}

/// FNV-1a over 64-bit words rather than bytes: it only has to tell ranks apart.
std::uint64_t hash_of(std::span<const float> values, std::uint64_t hash) {
  for (const float value : values) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3u;
  return hash;
}

}  // namespace

Table::Table(std::size_t row_count, std::size_t dimension)
    : rows(row_count), dim(dimension), weights(rows * dim), gradient(rows * dim), touched((rows + 63) / 64) {}

void Table::mark_nonzero_rows() {
  std::fill(touched.begin(), touched.end(), 0);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = gradient_row(r);
    if (std::any_of(row.begin(), row.end(), [](float v) { return v != 0; })) mark(r);
  }
}

/// As in the authors' program: input rows small and random, output rows zero.
Model::Model(std::size_t vocabulary, std::size_t dim, std::uint64_t seed)
    : input(vocabulary, dim), output(vocabulary, dim) {
  Random random(seed);
  for (float& weight : input.weights)
    weight = static_cast<float>((random.uniform() - 0.5) / static_cast<double>(dim));
}

Loss Model::add_gradients(const Batch& batch) {
  Loss loss;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Example example = batch.example(i);
    const auto centre = input.row(example.centre);
    const auto centre_gradient = input.gradient_row(example.centre);
    for_each_score(*this, example, [&](WordId word, float score, bool is_true, float weight) {
      loss.sum += weight * softplus(is_true ? -score : score);
      const float slope = weight * (logistic(score) - (is_true ? 1.0f : 0.0f));
      add_scaled(centre_gradient, slope, output.row(word));
      add_scaled(output.gradient_row(word), slope, centre);
      output.mark(word);
    });
    input.mark(example.centre);
    loss.pairs += example.contexts.size();
  }
  return loss;
}

Loss Model::loss(const Batch& batch) const {
  Loss loss;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Example example = batch.example(i);
    for_each_score(*this, example, [&](WordId, float score, bool is_true, float weight) {
      loss.sum += weight * softplus(is_true ? -score : score);
    });
    loss.pairs += example.contexts.size();
  }
  return loss;
}

std::uint64_t Model::hash() const {
  return hash_of(output.weights, hash_of(input.weights, 0xcbf29ce484222325u));
}

}  // namespace train
