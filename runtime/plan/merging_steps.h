// Who exchanges partial sums with whom by merging. Pure functions; runtime/exchange/merging/README.md has the
// steps.
#pragma once

#include <bit>

namespace nzcl::engine {

/// The ranks of a communicator as merging sees them. As many of them as the largest power of two take part in
/// the rounds, each in a *place*. The others are too many for that: each of these *givers* hands its
/// contribution to the rank before it, and gets the result from there.
class MergingPlan {
 public:
  constexpr explicit MergingPlan(int ranks)
      : places_(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))), givers_(ranks - places_) {}

  constexpr int rounds() const { return std::countr_zero(static_cast<unsigned>(places_)); }
  constexpr int givers() const { return givers_; }
  /// Givers are ranks 1, 3, 5 ..., so that places are in the order of the ranks.
  constexpr bool gives(int rank) const { return rank < 2 * givers_ && rank % 2 == 1; }
  constexpr bool takes(int rank) const { return rank < 2 * givers_ && rank % 2 == 0; }
  constexpr int place_of(int rank) const { return rank < 2 * givers_ ? rank / 2 : rank - givers_; }
  constexpr int rank_at(int place) const { return place < givers_ ? 2 * place : place + givers_; }
  /// The rank that this one exchanges partial sums with in a round.
  constexpr int partner(int rank, int round) const { return rank_at(place_of(rank) ^ 1 << round); }

  /// Whether two ranks send each other messages.
  constexpr bool meet(int a, int b) const {
    if (gives(a)) return b == a - 1;
    if (gives(b)) return a == b - 1;
    return std::has_single_bit(static_cast<unsigned>(place_of(a) ^ place_of(b)));
  }
  /// Whether what goes from one rank to another is a partial sum of several ranks, and neither a rank's
  /// contribution nor the result.
  constexpr bool partial(int from, int to) const {
    return !gives(from) && !gives(to) && (takes(from) || (place_of(from) ^ place_of(to)) != 1);
  }
  /// How many ranks this one exchanges messages with.
  constexpr int partners(int rank) const { return gives(rank) ? 1 : rounds() + (takes(rank) ? 1 : 0); }

 private:
  int places_, givers_;
};

/// The most ranks that any rank exchanges messages with.
constexpr int most_merging_partners(int ranks) {
  const MergingPlan plan(ranks);
  return plan.rounds() + (plan.givers() > 0 ? 1 : 0);
}

}  // namespace nzcl::engine
