#pragma once

#include <optional>
#include <vector>

#include "nzcl/communicator.h"
#include "perf/allreduce/gpu_memory.h"
#include "perf/allreduce/problem.h"
#include "perf/allreduce/totals.h"

namespace perf::allreduce {

struct Measurement {
  std::vector<double> seconds;  // of each timed operation on the slowest rank, ascending
  double wire_bytes = 0;        // sent per operation by the rank that sent most
  double cpu_seconds = 0;       // per operation, of all ranks
  std::uint64_t wrong = 0;      // elements, on all ranks
  nzcl::Algorithm algorithm = nzcl::Algorithm::push;  // that nzcl took
  /// Of compressed operations, the mean over the ranks: the share of the elements that is sent, the share in
  /// the result, the bytes written upwards, those received of results, and the norm of what is kept.
  double density = 0, union_density = 0, coded_bytes = 0, coded_ratio = 0, residual_norm = 0;
  double result_bytes = 0;

  double median() const { return seconds[seconds.size() / 2]; }
};

/// The buffers of one rank, registered once, and the timed loop.
class Bench {
 public:
  Bench(nzcl::Communicator& communicator, const Settings& settings);
  /// A stream has no in-place form. Collective.
  Measurement run(const Problem& problem, bool in_place);
  /// The sums over the ranks. Collective.
  std::vector<double> sum(const std::vector<double>& values) { return totals_.sum(values); }

 private:
  void prepare(const Problem& problem);
  void reset_output(const Problem& problem, bool in_place, bool checked);
  nzcl::Work start(const Problem& problem, bool in_place);
  nzcl::Work start_collective(const Problem& problem, bool in_place);
  std::uint64_t wrong(const Problem& problem, const nzcl::Work& work, bool in_place);

  nzcl::Communicator& communicator_;
  const Settings& settings_;
  std::vector<std::byte> pristine_;  // this rank's tensor; after a packed operation, room to check it
  std::vector<std::byte> input_;     // the tensor, or the stream's values
  std::vector<std::byte> output_;    // the tensor, or the packed values
  std::vector<std::uint64_t> bitmap_;
  std::vector<std::byte> indices_;  // of the stream, in the type that was asked for
  std::size_t index_count_ = 0;
  std::vector<std::byte> packed_indices_;  // of the result
  nzcl::RegisteredBuffer registered_input_, registered_output_;
  std::optional<GpuMemory> gpu_;  // what is read and written, where `input_` and `output_` are copies
  Totals totals_;
};

}  // namespace perf::allreduce
