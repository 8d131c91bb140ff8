// A meeting of some members of a communicator, over its control plane: how a communicator that is split off
// comes to life, whatever way its parent's members met.
#pragma once

#include <string>
#include <vector>

#include "runtime/bootstrap/bootstrap.h"
#include "runtime/bootstrap/control.h"

namespace nzcl::bootstrap {

/// The control plane must outlive it. Its keys and addresses travel over connections that have proved the
/// job's secret.
class ControlMeeting final : public Bootstrap {
 public:
  /// `name` is the same on all members, and of no other meeting of this control plane. `members` are
  /// positions of the control plane; this process is the one at `members[rank]`.
  ControlMeeting(ControlPlane& control, std::string name, std::vector<int> members, int rank);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  /// Throws the communicator's Error if it fails meanwhile.
  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override;
  /// Tells the others that this member will not continue the meeting, so that they need not wait for it. Does
  /// nothing if the meeting has failed for all.
  void abandon(Failure failure);

 private:
  std::string round_name() const;

  ControlPlane& control_;
  const std::string name_;
  const std::vector<int> members_;
  const int rank_;
  int round_ = 0;
  bool failed_ = false;
};

}  // namespace nzcl::bootstrap
