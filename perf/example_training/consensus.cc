#include "perf/example_training/consensus.h"

#include <algorithm>
#include <bit>

namespace train {

Consensus::Consensus(nzcl::Communicator& communicator)
    : communicator_(communicator),
      smallest_buffer_(communicator.register_buffer(&smallest_, sizeof smallest_)),
      largest_buffer_(communicator.register_buffer(&largest_, sizeof largest_)),
      sums_buffer_(communicator.register_buffer(sums_.data(), sizeof sums_)) {}

bool Consensus::same_everywhere(std::uint64_t value) {
  smallest_ = largest_ = std::bit_cast<std::int64_t>(value);
  const auto start = [&](std::int64_t& place, nzcl::ReduceOp op) {
    return communicator_.allreduce({.input = &place,
                                    .output = &place,
                                    .count = 1,
                                    .type = nzcl::DataType::int64,
                                    .op = op,
                                    .block_elems = 1});
  };
  nzcl::Work smallest = start(smallest_, nzcl::ReduceOp::min);  // both are in flight at once
  nzcl::Work largest = start(largest_, nzcl::ReduceOp::max);
  smallest.wait();
  largest.wait();
  return smallest_ == largest_;
}

void Consensus::sum(std::span<double> values) {
  std::copy(values.begin(), values.end(), sums_.begin());
  nzcl::Work work = communicator_.allreduce({.input = sums_.data(),
                                             .output = sums_.data(),
                                             .count = values.size(),
                                             .type = nzcl::DataType::float64,
                                             .block_elems = kMaxSums});
  work.wait();
  std::copy_n(sums_.begin(), values.size(), values.begin());
}

}  // namespace train
