#include "runtime/bootstrap/rounds.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

namespace nzcl::bootstrap {
namespace {

std::vector<int> everybody(int size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

Rounds::Rounds(ControlPlane& control, std::string name, int size, int rank)
    : Rounds(control, std::move(name), everybody(size), rank) {}

Rounds::Rounds(ControlPlane& control, std::string name, std::vector<int> members, int rank)
    : control_(control), name_(std::move(name)), members_(std::move(members)), rank_(rank) {}

std::vector<std::string> Rounds::allgather(std::string_view mine, Deadline deadline) {
  auto parts =
      control_.gather(fmt::format("{}, round {}", name_, round_++), members_, std::string(mine), deadline);
  if (!parts) throw Error(ErrorCode::invalid_usage, name_ + ": the communicator is closed");
  return std::move(*parts);
}

}  // namespace nzcl::bootstrap
