// Skip-gram with negative sampling (Mikolov et al. 2013): two embedding tables and the gradient of one
// mini-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "perf/example_training/batches.h"

namespace train {

/// One embedding table, its gradient, and which gradient rows are not zero. A row is one block of the
/// allreduce.
struct Table {
  Table(std::size_t row_count, std::size_t dimension);

  std::span<const float> row(std::size_t r) const { return std::span(weights).subspan(r * dim, dim); }
  std::span<float> row(std::size_t r) { return std::span(weights).subspan(r * dim, dim); }
  std::span<float> gradient_row(std::size_t r) { return std::span(gradient).subspan(r * dim, dim); }
  void mark(std::size_t r) { touched[r / 64] |= std::uint64_t{1} << (r % 64); }
  /// Marks the rows whose gradient is not zero, and no others.
  void mark_nonzero_rows();

  std::size_t rows;
  std::size_t dim;
  std::vector<float> weights;
  std::vector<float> gradient;         // all zero between steps
  std::vector<std::uint64_t> touched;  // bit r: gradient row r may be non-zero
};

struct Loss {
  double sum = 0;
  std::uint64_t pairs = 0;  ///< of a centre and one context
  double mean() const { return pairs == 0 ? 0 : sum / static_cast<double>(pairs); }
};

/// The loss of a pair is -log s(v.u) - sum over its negatives n of log s(-v.n), with s the logistic function,
/// v the centre's row of `input`, u and n rows of `output`. All pairs of a centre share its negatives, which
/// therefore count once per pair: the same expectation as drawing anew for each pair, with about a third of
/// the arithmetic and fewer rows touched.
struct Model {
  Model(std::size_t vocabulary, std::size_t dim, std::uint64_t seed);

  /// Adds the batch's gradient to both tables' gradients and marks the rows.
  Loss add_gradients(const Batch& batch);
  Loss loss(const Batch& batch) const;
  /// Equal for equal bits of all weights.
  std::uint64_t hash() const;

  Table input;
  Table output;
};

}  // namespace train
