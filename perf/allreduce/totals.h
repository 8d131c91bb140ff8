// Sums over the ranks of what each has measured.
#pragma once

#include <cstddef>
#include <vector>

#include "nzcl/communicator.h"

namespace perf::allreduce {

/// Reduces numbers over all ranks, in a buffer that is registered once.
class Totals {
 public:
  /// `most` is how many numbers there can be at a time. Collective, as all calls are.
  Totals(nzcl::Communicator& communicator, std::size_t most)
      : communicator_(communicator),
        numbers_(most),
        registered_(communicator.register_buffer(numbers_.data(), most * sizeof(double))) {}
  Totals(const Totals&) = delete;
  Totals& operator=(const Totals&) = delete;

  std::vector<double> sum(const std::vector<double>& values) { return reduce(values, nzcl::ReduceOp::sum); }
  std::vector<double> largest(const std::vector<double>& values) {
    return reduce(values, nzcl::ReduceOp::max);
  }

 private:
  std::vector<double> reduce(const std::vector<double>& values, nzcl::ReduceOp op);

  nzcl::Communicator& communicator_;
  std::vector<double> numbers_;
  nzcl::RegisteredBuffer registered_;
};

}  // namespace perf::allreduce
