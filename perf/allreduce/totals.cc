#include "perf/allreduce/totals.h"

#include <algorithm>
#include <cstdint>

namespace perf::allreduce {

/// Afterwards the numbers of rank r are those from r * values.size() on.
void Totals::gather(const std::vector<double>& values) {
  const std::size_t all = values.size() * static_cast<std::size_t>(communicator_.size());
  std::fill_n(numbers_.begin(), all, 0.0);
  std::ranges::copy(values,
                    numbers_.begin() + static_cast<std::ptrdiff_t>(values.size()) * communicator_.rank());
  communicator_
      .allreduce({.input = numbers_.data(),
                  .output = numbers_.data(),
                  .count = all * sizeof(double) / sizeof(std::int32_t),
                  .type = nzcl::DataType::int32,
                  .dense = true})
      .wait();
}

}  // namespace perf::allreduce
