#include "runtime/bootstrap/control_meeting.h"

#include <fmt/format.h>

#include <utility>

namespace nzcl::bootstrap {

ControlMeeting::ControlMeeting(ControlPlane& control, std::string name, std::vector<int> members, int rank)
    : control_(control), name_(std::move(name)), members_(std::move(members)), rank_(rank) {}

std::string ControlMeeting::round_name() const { return fmt::format("{}, round {}", name_, round_); }

std::vector<std::string> ControlMeeting::allgather(std::string_view mine, Deadline deadline) {
  failed_ = true;  // until the round has ended well
  auto parts = control_.gather(round_name(), members_, std::string(mine), deadline);
  if (!parts) throw Error(ErrorCode::invalid_usage, name_ + ": the communicator is closed");
  failed_ = false;
  ++round_;
  return std::move(*parts);
}

void ControlMeeting::abandon(Failure failure) {
  if (!failed_) control_.give_up(round_name(), members_, std::move(failure));
}

}  // namespace nzcl::bootstrap
