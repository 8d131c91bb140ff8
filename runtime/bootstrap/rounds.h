// The rounds of an allgather over a control plane.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/bootstrap/control.h"

namespace nzcl::bootstrap {

/// The control plane must outlive it. Used by one thread.
class Rounds {
 public:
  /// Of all members of the control plane, of which this one is the one at position `rank`. `name` is of no
  /// other rounds of this control plane.
  Rounds(ControlPlane& control, std::string name, int size, int rank);
  /// `members` are positions of the control plane; this process is the one at `members[rank]`.
  Rounds(ControlPlane& control, std::string name, std::vector<int> members, int rank);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Collective: every member calls it the same number of times. Returns the bytes of all members, ordered by
  /// their positions in these rounds. Throws what ControlPlane::gather() throws.
  std::vector<std::string> allgather(std::string_view mine, Deadline deadline);
  /// The same, but each member tells each of them something of its own: `mine` has a text for each member, by
  /// position. Returns what each has told this one.
  std::vector<std::string> tell_each(const std::vector<std::string>& mine, Deadline deadline);

 private:
  std::string next_name();
  std::vector<std::string> answered(std::optional<std::vector<std::string>> parts) const;

  ControlPlane& control_;
  const std::string name_;
  const std::vector<int> members_;  // empty: all
  const int size_, rank_;
  int round_ = 0;
};

}  // namespace nzcl::bootstrap
