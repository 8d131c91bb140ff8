#include "runtime/bootstrap/leave_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace nzcl::bootstrap {

LeaveBoard::LeaveBoard(std::vector<std::string> names, const std::vector<bool>& serves)
    : names_(std::move(names)), members_(names_.size()) {
  for (std::size_t i = 0; i < serves.size(); ++i) members_[i].here = !serves[i];
}

bool LeaveBoard::left(std::size_t member, std::uint64_t begun) {
  members_[member].here = false;
  if (leaver_ && leaver_->begun <= begun) return false;
  leaver_ = {.member = member, .begun = begun};
  return true;
}

void LeaveBoard::wants(std::size_t member, std::uint64_t operations) {
  members_[member].wanted = std::max(members_[member].wanted, operations);
}

void LeaveBoard::finished(std::size_t member, std::uint64_t operations) {
  members_[member].finished = std::max(members_[member].finished, operations);
}

std::uint64_t LeaveBoard::limit() const {
  return leaver_ ? leaver_->begun : std::numeric_limits<std::uint64_t>::max();
}

bool LeaveBoard::exceeded() const {
  return std::any_of(members_.begin(), members_.end(),
                     [this](const Member& m) { return m.wanted > limit(); });
}

std::optional<Failure> LeaveBoard::failure() const {
  const auto waiting =
      std::find_if(members_.begin(), members_.end(), [this](const Member& m) { return m.wanted > limit(); });
  if (waiting == members_.end()) return std::nullopt;
  const bool settled = std::all_of(members_.begin(), members_.end(),
                                   [this](const Member& m) { return !m.here || m.finished >= limit(); });
  if (!settled) return std::nullopt;
  return Failure{
      ErrorCode::invalid_usage,
      fmt::format("operation {}: {} did not join it and has left: it closed its communicator after "
                  "{} operation(s), and {} has started {}; all ranks must start the same operations",
                  limit(), names_[leaver_->member], limit(),
                  names_[static_cast<std::size_t>(waiting - members_.begin())], waiting->wanted)};
}

}  // namespace nzcl::bootstrap
