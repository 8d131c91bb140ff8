#include "perf/example_training/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "perf/example_training/vector_math.h"

namespace train {

void RowAdagrad::apply(Table& table, std::span<const std::uint64_t> rows, float factor) {
  constexpr float kTiny = 1e-12f;  // only guards the division of a row that has never had a gradient
  for (std::size_t word = 0; word < rows.size(); ++word) {
    for (std::uint64_t bits = rows[word]; bits != 0; bits &= bits - 1) {
      const std::size_t row = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      const auto gradient = table.gradient_row(row);
      squares_[row] += dot(gradient, gradient) / static_cast<float>(table.dim);
      add_scaled(table.row(row), -factor * rate_ / std::sqrt(squares_[row] + kTiny), gradient);
      std::fill(gradient.begin(), gradient.end(), 0.0f);
    }
  }
}

}  // namespace train
