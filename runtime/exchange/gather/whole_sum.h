// Sums whole contributions to an operation of one slice, directly into the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/exchange/gather/arrivals.h"
#include "runtime/kernels/reduce.h"
#include "runtime/operation/operation.h"

namespace nzcl::engine {

/// All ranks sum the same bytes, run by run and in the order of the ranks, so they get the same bits. What
/// does not fit a packed output is kept if the output may grow. For one thread.
class WholeSum {
 public:
  /// For contributions of `ranks` ranks, each with a bitmap and a stream of at most `most_bytes` together.
  WholeSum(int ranks, std::uint64_t most_bytes);

  /// Writes the sum to the operation's output, and notes which blocks it has. `contributions` are by rank,
  /// and nothing of them lies in the output.
  void sum(Operation& operation, std::span<const WholeContribution> contributions);

 private:
  /// A run of blocks that the same ranks hold. `sources` is where their bytes of it begin, in rank order.
  struct Run {
    std::span<const std::byte*> sources;
    std::uint64_t bytes = 0;
  };
  void unite(Operation& operation, std::span<const WholeContribution> contributions);
  void sum_all(Operation& operation, std::span<const WholeContribution> contributions);
  void sum_runs(Operation& operation, std::span<const WholeContribution> contributions);
  Run run_at(std::uint64_t block, std::uint64_t bytes, std::span<const WholeContribution> contributions);
  void write(Operation& operation, std::uint64_t offset, const Run& run);
  void reduce(std::byte* to, std::span<const std::byte*> sources, std::uint64_t bytes);

  const int ranks_;
  ReduceFn reduce_ = nullptr;  // of the operation, as the next one
  std::uint64_t element_bytes_ = 0;
  std::vector<std::uint64_t> edges_;  // bit b is set if some rank holds only one of the blocks b, b + 1
  std::vector<std::uint64_t> used_;   // by rank: bytes of its stream that have been summed
  std::vector<const std::byte*> sources_;
  std::vector<std::byte> overflow_;
};

}  // namespace nzcl::engine
