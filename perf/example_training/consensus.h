// Questions that all ranks answer together, each one small allreduce.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "nzcl/communicator.h"

namespace train {

/// Collective: every rank makes one, and asks the same questions in the same order. Throws nzcl::Error. One
/// thread.
class Consensus {
 public:
  explicit Consensus(nzcl::Communicator& communicator);
  Consensus(const Consensus&) = delete;  // nzcl knows the members' addresses
  Consensus& operator=(const Consensus&) = delete;

  /// Did all ranks give the same value?
  bool same_everywhere(std::uint64_t value);
  /// Replaces each value by its sum over the ranks. At most kMaxSums values.
  void sum(std::span<double> values);

  static constexpr std::size_t kMaxSums = 16;

 private:
  nzcl::Communicator& communicator_;
  std::int64_t smallest_ = 0;
  std::int64_t largest_ = 0;
  std::array<double, kMaxSums> sums_{};
  nzcl::RegisteredBuffer smallest_buffer_, largest_buffer_, sums_buffer_;
};

}  // namespace train
