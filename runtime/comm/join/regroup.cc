#include "runtime/comm/join/regroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/factory.h"
#include "runtime/bootstrap/regroup_meeting.h"
#include "runtime/wire/immediate.h"

namespace nzcl::comm {

bootstrap::RegroupWish wish_without(std::span<const int> ranks, bool minority,
                                    const engine::Membership& membership) {
  const engine::Members& members = membership.members;
  bootstrap::RegroupWish wish{.leave_out = {}, .minority = minority, .grow = 0};
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

Part part_of_attempt(const Introduction& whole, bootstrap::Regrouping& regrouping,
                     const bootstrap::Regrouping::Attempt& attempt) {
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
  part.meeting = bootstrap::make_regroup_meeting(
      meeting_of_part(part.introduction, "the control plane of the communicator that is shrunk"), regrouping,
      attempt.number, one_host);
  return part;
}

bootstrap::RegroupWish wish_to_grow(int size, const engine::Members& members) {
  const int most = wire::kMaxMembers - members.dedicated;
  if (size <= members.workers || size > most)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("grow: the size is {}; it must be above {}, the number of ranks now, and at most {}",
                    size, members.workers, most));
  return {.leave_out = {}, .minority = false, .grow = size};
}

namespace {

/// `place` is a path, or a host and a port.
void set_place(Options& options, const std::string& place) {
  if (place.starts_with('/')) {
    options.bootstrap = Bootstrap::file;
    options.rendezvous_file = place;
    return;
  }
  const auto colon = place.rfind(':');
  const char* const end = place.data() + place.size();
  int port = 0;
  if (colon == place.npos || colon == 0 || std::from_chars(place.data() + colon + 1, end, port).ptr != end ||
      port < 1 || port > 65535)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("grow: \"{}\" is no place to meet: \"HOST:PORT\", or the absolute path of a file",
                            place));
  options.bootstrap = Bootstrap::socket;
  options.master_addr = place.substr(0, colon);
  if (options.master_addr.starts_with('[') && options.master_addr.ends_with(']'))  // an IPv6 address
    options.master_addr = options.master_addr.substr(1, options.master_addr.size() - 2);
  options.master_port = port;
}

/// The members of the grown communicator, as far as they are known here.
bootstrap::MeetingSettings settings_of_growth(const Introduction& whole, int workers) {
  const engine::Members& members = whole.membership.members;
  const auto name = [&](int member) {
    return whole.membership
        .names[static_cast<std::size_t>(whole.membership.position_of[static_cast<std::size_t>(member)])];
  };
  std::vector<std::string> names;
  for (int rank = 0; rank < workers; ++rank)
    names.push_back(rank < members.workers ? name(rank) : fmt::format("rank {}", rank));
  for (int a = 0; a < members.dedicated; ++a) names.push_back(name(members.aggregator_member(a)));
  const int position =
      members.is_worker(members.self) ? members.self : workers + members.self - members.workers;
  return {.position = position,
          .size = static_cast<int>(names.size()),
          .session = whole.asked.session,
          .who = name(members.self),
          .name = [names](int i) { return names[static_cast<std::size_t>(i)]; },
          .point_name = "the control plane of the communicator that grows"};
}

}  // namespace

Growth growth_of_attempt(const Introduction& whole, bootstrap::Regrouping& regrouping,
                         const bootstrap::Regrouping::Attempt& attempt, const std::string& place) {
  const engine::Members& members = whole.membership.members;
  const bool worker = members.is_worker(members.self);
  Growth growth{.options = whole.asked,
                .identity = {.role = worker ? bootstrap::Role::worker : bootstrap::Role::aggregator,
                             .index = -1,  // as the new ones, which have none but their positions
                             .wing = whole.wing},
                .meeting = nullptr};
  Options& options = growth.options;
  options.rank = worker ? members.self : -1;
  options.world_size = attempt.grow;
  if (options.bootstrap == Bootstrap::pmix)
    options.bootstrap = Bootstrap::automatic;  // which knows no new ranks
  auto settings = settings_of_growth(whole, attempt.grow);
  std::unique_ptr<bootstrap::Meeting> open;
  if (settings.position == 0) {
    if (!place.empty()) set_place(options, place);
    open = bootstrap::make_open_meeting(options);
    settings.point_name = open->settings().point_name;
  }
  growth.meeting =
      bootstrap::make_regroup_meeting(std::move(settings), regrouping, attempt.number, std::move(open));
  return growth;
}

}  // namespace nzcl::comm
