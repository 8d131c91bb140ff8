// In which order rounds began, and which contributions must have been lost because later ones have come.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/switch/tuning.h"

namespace nzcl::engine::slot_pool {

/// All ranks are clocked by the same results, so they send their contributions in the order in which rounds
/// begin. A rank that has contributed to some later rounds, but not to this one, has therefore lost its
/// contribution to it, or the result that releases it. A rank that has sent nothing later is only late.
///
/// Knows each set's round by its number, which counts rounds over all slots. Not thread-safe; allocates only
/// when it is made.
class RoundOrder {
 public:
  RoundOrder(std::size_t sets, int ranks)
      : numbers_(sets), recent_(sets), ranks_(static_cast<std::size_t>(ranks)) {}

  /// A round begins in this set.
  void begin(std::uint32_t set) {
    numbers_[set] = ++begun_;
    recent_[begun_ % recent_.size()] = set;
  }
  /// The rank's contribution to the set's round has come.
  void came(std::uint32_t set, int rank) {
    auto& latest = ranks_[static_cast<std::size_t>(rank)].latest;
    if (numbers_[set] <= latest[0]) return;
    latest[0] = numbers_[set];
    std::ranges::sort(latest);
  }
  /// Whether the rank has contributed to so many later rounds that it must have sent its contribution to this
  /// one as well.
  bool has_passed(std::uint32_t set, int rank) const {
    return numbers_[set] < ranks_[static_cast<std::size_t>(rank)].latest[0];
  }
  /// Calls look(set) for each set whose round the rank has passed since the last call. Ends early, to go on
  /// there next time, when look() returns false. A round is looked at once for each rank.
  template <typename Look>
  void look_at_passed(int rank, Look look) {
    auto& [latest, looked] = ranks_[static_cast<std::size_t>(rank)];
    if (begun_ > recent_.size()) looked = std::max(looked, begun_ - recent_.size());
    for (; looked + 1 < latest[0]; ++looked) {
      const std::uint32_t set = recent_[(looked + 1) % recent_.size()];
      if (numbers_[set] == looked + 1 && !look(set)) return;
    }
  }

 private:
  struct Rank {
    // Of the rounds it has contributed to, in rising order.
    std::array<std::uint64_t, kLaterPackets> latest{};
    std::uint64_t looked = 0;  // all rounds up to this number
  };
  std::uint64_t begun_ = 0;             // rounds
  std::vector<std::uint64_t> numbers_;  // of each set's round
  std::vector<std::uint32_t> recent_;   // the set of each of the last rounds, by number
  std::vector<Rank> ranks_;
};

}  // namespace nzcl::engine::slot_pool
