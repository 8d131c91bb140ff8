#include "runtime/comm/join/shrink.h"

#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/bootstrap/shrink_meeting.h"

namespace nzcl::comm {

bootstrap::Shrinking::Wish wish_without(std::span<const int> ranks, bool minority,
                                        const engine::Membership& membership) {
  const engine::Members& members = membership.members;
  bootstrap::Shrinking::Wish wish{.leave_out = {}, .minority = minority};
  for (const int rank : ranks) {
    if (rank < 0 || rank >= members.workers)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("shrink: leave_out names rank {}, but there are {} ranks", rank, members.workers));
    if (rank == members.self)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("shrink: leave_out names rank {}, which makes the call itself; a rank that is left "
                      "out does not call",
                      rank));
    wish.leave_out.push_back(membership.position_of[static_cast<std::size_t>(rank)]);
  }
  std::sort(wish.leave_out.begin(), wish.leave_out.end());
  if (std::adjacent_find(wish.leave_out.begin(), wish.leave_out.end()) != wish.leave_out.end())
    throw Error(ErrorCode::invalid_argument, "shrink: leave_out names a rank twice");
  return wish;
}

Part part_of_attempt(const Introduction& whole, bootstrap::Shrinking& shrinking,
                     const bootstrap::Shrinking::Attempt& attempt) {
  std::vector<int> members;
  for (const int position : attempt.members)
    members.push_back(whole.membership.member_of[static_cast<std::size_t>(position)]);
  std::sort(members.begin(), members.end());  // ranks in the old order, and then dedicated aggregators
  const auto workers = std::count_if(members.begin(), members.end(),
                                     [&](int member) { return whole.membership.members.is_worker(member); });
  Part part;
  part.introduction =
      introduce_part(whole, members, static_cast<int>(workers), fmt::format("shrunk{}", attempt.number));
  if (const auto& wing = part.introduction.wing) wing->check(part.introduction.membership.members);
  const bool one_host = part.introduction.membership.networks.all_together();
  part.meeting = bootstrap::make_shrink_meeting(
      meeting_of_part(part.introduction, "the control plane of the communicator that is shrunk"), shrinking,
      attempt.number, one_host);
  return part;
}

}  // namespace nzcl::comm
