#pragma once

#include <vector>

#include "nzcl/communicator.h"
#include "perf/allreduce/problem.h"

namespace perf::allreduce {

struct Measurement {
  std::vector<double> seconds;  // of each timed operation on the slowest rank, ascending
  double wire_bytes = 0;        // sent per operation by the rank that sent most
  double cpu_seconds = 0;       // per operation, of all ranks
  std::uint64_t wrong = 0;      // elements, on all ranks

  double median() const { return seconds[seconds.size() / 2]; }
};

/// The buffers of one rank, registered once, and the timed loop.
class Bench {
 public:
  Bench(nzcl::Communicator& communicator, const Settings& settings);
  /// Collective.
  Measurement run(const Problem& problem, bool in_place);
  /// The sums over the ranks. Collective.
  std::vector<double> sum(std::vector<double> values) {
    return gather(std::move(values), nzcl::ReduceOp::sum);
  }

 private:
  std::vector<double> gather(std::vector<double> values, nzcl::ReduceOp op);

  nzcl::Communicator& communicator_;
  const Settings& settings_;
  std::vector<std::byte> pristine_, input_, output_;
  std::vector<double> exchanged_;
  nzcl::RegisteredBuffer registered_input_, registered_output_, registered_exchanged_;
};

}  // namespace perf::allreduce
