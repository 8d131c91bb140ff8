// How members make a communicator that takes the place of theirs: what an attempt of the control plane
// (runtime/bootstrap/regroup_board.h) means for ranks.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/bootstrap/regrouping.h"
#include "runtime/comm/join/part.h"
#include "runtime/plan/membership.h"

namespace nzcl::comm {

/// Returns what the control plane is to be asked for. Throws Error{invalid_argument} for ranks that do not
/// exist, this one itself, or one that is named twice.
bootstrap::RegroupWish wish_without(std::span<const int> ranks, bool minority,
                                    const engine::Membership& membership);

/// What this member needs to join the communicator of the attempt.
Part part_of_attempt(const Introduction& whole, bootstrap::Regrouping& regrouping,
                     const bootstrap::Regrouping::Attempt& attempt);

/// Returns what the control plane is to be asked for. Throws Error{invalid_argument} if there are so many
/// ranks already, or there cannot be so many.
bootstrap::RegroupWish wish_to_grow(int size, const engine::Members& members);

/// What this member needs to join a communicator with new ranks. Who these are is not known, so all introduce
/// themselves again.
struct Growth {
  Options options;
  Identity identity;
  std::unique_ptr<bootstrap::Meeting> meeting;
};

/// `place` is GrowOptions::place. Throws Error{invalid_argument} on rank 0 if the new ranks cannot find it.
Growth growth_of_attempt(const Introduction& whole, bootstrap::Regrouping& regrouping,
                         const bootstrap::Regrouping::Attempt& attempt, const std::string& place);

/// One call of shrink() or grow() on this process.
class RegroupTurn {
 public:
  /// Throws what Regrouping::enter() throws.
  explicit RegroupTurn(bootstrap::Regrouping& regrouping) : regrouping_(regrouping) { regrouping_.enter(); }
  ~RegroupTurn() { regrouping_.leave(); }
  RegroupTurn(const RegroupTurn&) = delete;
  RegroupTurn& operator=(const RegroupTurn&) = delete;

 private:
  bootstrap::Regrouping& regrouping_;
};

}  // namespace nzcl::comm
