// The sparse allreduce that people use today: all ranks gather all streams, and each adds them up for itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "perf/peers/streams.h"

namespace perf::peers {

/// An allgather of streams: how many pairs each rank has, and then the pairs themselves, one rank's behind
/// the other's, in the order of the ranks.
struct Allgather {
  std::function<void(std::size_t own, std::vector<std::size_t>& counts)> counts;
  std::function<void(Stream own, Pair* all, const std::vector<std::size_t>& counts)> streams;
};

/// One rank's buffers. A call allocates only if there are more pairs than in any call before.
class GatherAndSum {
 public:
  GatherAndSum(int ranks, std::uint32_t elements, Allgather gather);
  /// The sum: dense if that is asked for or if the pairs are longer than the dense vector. Valid until the
  /// next call.
  Vector run(Stream own, bool dense);
  /// Bytes that this rank sent since the last call; its stream counts once for every other rank.
  std::uint64_t take_sent_bytes();

 private:
  std::size_t gather(Stream own);

  const std::uint32_t elements_;
  const Allgather gather_;
  std::vector<std::size_t> counts_;
  std::vector<Stream> parts_;
  std::unique_ptr<Pair[]> all_;
  std::size_t room_ = 0;  // pairs in all_
  const std::unique_ptr<Pair[]> merged_, scratch_;
  const std::unique_ptr<float[]> dense_;
  std::uint64_t sent_ = 0;
};

}  // namespace perf::peers
