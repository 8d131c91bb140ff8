// Adagrad with one state per row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "perf/example_training/model.h"

namespace train {

/// w -= rate * g / sqrt(G), where G sums the mean square of the row's gradients so far.
///
/// Why not plain SGD: one step sums the pairs of thousands of words. Frequent rows then get the gradients of
/// hundreds of pairs at once and diverge at a rate that rare rows, with one pair every hundred steps, need to
/// learn anything. Dividing by the row's own history gives every row steps of its own size, and makes them
/// independent of batch size and rank count. One state per row rather than per element costs 1/dim of the
/// memory and learns as well here.
///
/// A row whose gradient is zero is not changed by a bit, so visiting all rows or only the union's gives the
/// same weights.
class RowAdagrad {
 public:
  RowAdagrad(std::size_t rows, float rate) : rate_(rate), squares_(rows) {}

  /// Updates the rows whose bit is set and zeroes their gradient. `factor` scales the rate: the schedule.
  void apply(Table& table, std::span<const std::uint64_t> rows, float factor);

 private:
  float rate_;
  std::vector<float> squares_;  // G of each row
};

}  // namespace train
