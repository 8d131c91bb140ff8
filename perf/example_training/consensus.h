// Questions that all ranks answer together, each one small allreduce.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/communicator.h"

namespace train {

/// Every rank learns what all ranks say, and draws the conclusion by itself. Words of 32 bits are summed, of
/// which each rank has a place of its own, with zeros in all others: this is exact, and every way in which
/// nzcl exchanges tensors can sum int32.
///
/// Collective: every rank makes one, and asks the same questions in the same order. Throws nzcl::Error. One
/// thread.
class Consensus {
 public:
  explicit Consensus(nzcl::Communicator& communicator);
  Consensus(const Consensus&) = delete;  // nzcl knows the member's address
  Consensus& operator=(const Consensus&) = delete;

  /// Did all ranks give the same value?
  bool same_everywhere(std::uint64_t value);
  /// Replaces each value by its sum over the ranks, taken in their order. At most kMaxSums values.
  void sum(std::span<double> values);

  static constexpr std::size_t kMaxSums = 16;

 private:
  /// Puts this rank's words into its place, and returns those of all ranks, one rank's behind the other's.
  std::span<const std::uint64_t> gather(std::span<const std::uint64_t> words);

  nzcl::Communicator& communicator_;
  std::vector<std::uint64_t> words_;
  nzcl::RegisteredBuffer buffer_;
};

}  // namespace train
