// How the members that are left of a communicator make a smaller one: what an attempt of the control plane
// (runtime/bootstrap/shrink_board.h) means for ranks.
#pragma once

#include <span>

#include "runtime/bootstrap/shrinking.h"
#include "runtime/comm/join/part.h"
#include "runtime/plan/membership.h"

namespace nzcl::comm {

/// Returns what the control plane is to be asked for. Throws Error{invalid_argument} for ranks that do not
/// exist, this one itself, or one that is named twice.
bootstrap::Shrinking::Wish wish_without(std::span<const int> ranks, bool minority,
                                        const engine::Membership& membership);

/// What this member needs to join the communicator of the attempt.
Part part_of_attempt(const Introduction& whole, bootstrap::Shrinking& shrinking,
                     const bootstrap::Shrinking::Attempt& attempt);

/// One call of shrink() on this process.
class ShrinkTurn {
 public:
  /// Throws what Shrinking::enter() throws.
  explicit ShrinkTurn(bootstrap::Shrinking& shrinking) : shrinking_(shrinking) { shrinking_.enter(); }
  ~ShrinkTurn() { shrinking_.leave(); }
  ShrinkTurn(const ShrinkTurn&) = delete;
  ShrinkTurn& operator=(const ShrinkTurn&) = delete;

 private:
  bootstrap::Shrinking& shrinking_;
};

}  // namespace nzcl::comm
