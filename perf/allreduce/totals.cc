#include "perf/allreduce/totals.h"

#include <algorithm>

namespace perf::allreduce {

std::vector<double> Totals::reduce(const std::vector<double>& values, nzcl::ReduceOp op) {
  std::copy(values.begin(), values.end(), numbers_.begin());
  communicator_
      .allreduce({.input = numbers_.data(),
                  .output = numbers_.data(),
                  .count = values.size(),
                  .type = nzcl::DataType::float64,
                  .op = op,
                  .dense = true})
      .wait();
  return {numbers_.begin(), numbers_.begin() + static_cast<std::ptrdiff_t>(values.size())};
}

}  // namespace perf::allreduce
