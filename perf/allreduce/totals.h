// Sums over the ranks of what each has measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "nzcl/communicator.h"

namespace perf::allreduce {

/// Reduces numbers over all ranks, in a buffer that is registered once. Each rank has a place of its own in
/// it, with zeros in all others, and the sum as int32 is exact; every way in which nzcl exchanges tensors can
/// compute it.
class Totals {
 public:
  /// `most` is how many numbers there can be at a time. Collective, as all calls are.
  Totals(nzcl::Communicator& communicator, std::size_t most)
      : communicator_(communicator),
        numbers_(most * static_cast<std::size_t>(communicator.size())),
        registered_(communicator.register_buffer(numbers_.data(), numbers_.size() * sizeof(double))) {}
  Totals(const Totals&) = delete;
  Totals& operator=(const Totals&) = delete;

  std::vector<double> sum(const std::vector<double>& values) {
    return reduce(values, [](double a, double b) { return a + b; });
  }
  std::vector<double> largest(const std::vector<double>& values) {
    return reduce(values, [](double a, double b) { return std::max(a, b); });
  }

 private:
  template <typename Reduce>
  std::vector<double> reduce(const std::vector<double>& values, Reduce of_two);
  void gather(const std::vector<double>& values);

  nzcl::Communicator& communicator_;
  std::vector<double> numbers_;
  nzcl::RegisteredBuffer registered_;
};

template <typename Reduce>
std::vector<double> Totals::reduce(const std::vector<double>& values, Reduce of_two) {
  gather(values);
  const std::size_t n = values.size();
  std::vector<double> result(numbers_.begin(), numbers_.begin() + static_cast<std::ptrdiff_t>(n));
  for (std::size_t i = n; i < n * static_cast<std::size_t>(communicator_.size()); ++i)
    result[i % n] = of_two(result[i % n], numbers_[i]);
  return result;
}

}  // namespace perf::allreduce
