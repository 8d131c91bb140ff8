#include "runtime/bootstrap/rounds.h"

#include <fmt/format.h>

#include <utility>

namespace nzcl::bootstrap {

Rounds::Rounds(ControlPlane& control, std::string name, int size, int rank)
    : control_(control), name_(std::move(name)), size_(size), rank_(rank) {}

Rounds::Rounds(ControlPlane& control, std::string name, std::vector<int> members, int rank)
    : control_(control),
      name_(std::move(name)),
      members_(std::move(members)),
      size_(static_cast<int>(members_.size())),
      rank_(rank) {}

std::string Rounds::next_name() { return fmt::format("{}, round {}", name_, round_++); }

std::vector<std::string> Rounds::answered(std::optional<std::vector<std::string>> parts) const {
  if (!parts) throw Error(ErrorCode::invalid_usage, name_ + ": the communicator is closed");
  return std::move(*parts);
}

std::vector<std::string> Rounds::allgather(std::string_view mine, Deadline deadline) {
  return answered(control_.gather(next_name(), members_, std::string(mine), deadline));
}

std::vector<std::string> Rounds::tell_each(const std::vector<std::string>& mine, Deadline deadline) {
  return answered(control_.tell_each(next_name(), members_, Row(mine), deadline));
}

}  // namespace nzcl::bootstrap
