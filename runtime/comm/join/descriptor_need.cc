#include "runtime/comm/join/descriptor_need.h"

#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "verbs/descriptors.h"

namespace nzcl::comm {
namespace {

/// What a member opens for a moment beside all else: files of the system, sockets that are being accepted.
constexpr std::size_t kOther = 8;

/// Member 0 has a connection to each of the others, and every other member has one to member 0, and a port.
std::size_t star_connections(int rank, int size) { return rank == 0 ? static_cast<std::size_t>(size) : 2; }

/// How to raise the limit, as the end of a sentence.
std::string advice(std::size_t wanted) {
  return fmt::format(
      "Raise it to {} at least (ulimit -Hn, LimitNOFILE of systemd, docker run --ulimit nofile)", wanted);
}

/// Throws if that many more descriptors do not fit. `who` needs them, and `or_else` is what else would help.
void refuse_if_too_few(std::size_t need, const std::string& who, const std::string& or_else) {
  const verbs::Descriptors now = verbs::read_descriptors();
  if (now.open + need <= now.soft) return;
  throw Error(
      ErrorCode::system,
      fmt::format("{} need about {} descriptors in this process, which has {} open; its hard limit is {} "
                  "(RLIMIT_NOFILE). {}{}",
                  who, now.open + need, now.open, now.hard, advice(now.open + need), or_else));
}

/// Adds what so many peers take that are reached in one way.
void add_peers(DescriptorNeed& need, const verbs::Limits& limits, std::size_t peers) {
  need.least += std::min(peers, limits.least_peers) * limits.peer_descriptors;
  need.all += peers * limits.peer_descriptors;
  if (!limits.take_turns) return;
  need.turns += peers * limits.peer_descriptors;
  need.least_turns += std::min(peers, limits.least_peers) * limits.peer_descriptors;
}

}  // namespace

DescriptorNeed descriptors_of_lanes(const engine::Membership& membership, const verbs::Device& device) {
  const auto peers = static_cast<std::size_t>(membership.members.count() - 1);
  const std::size_t own = device.limits().endpoint_descriptors;
  DescriptorNeed need{.least = own, .all = own, .turns = 0, .least_turns = 0};
  if (device.is_mixed()) {
    const auto within = static_cast<std::size_t>(membership.hosts.size_of(membership.members.self) - 1);
    add_peers(need, device.limits_at(verbs::Level::within), within);
    add_peers(need, device.limits_at(verbs::Level::between), peers - within);
  } else {
    add_peers(need, device.limits(), peers);
  }
  const auto lanes = static_cast<std::size_t>(membership.lanes);
  need.least *= lanes, need.all *= lanes;
  return need;
}

std::size_t descriptors_for_turns(const DescriptorNeed& need, std::size_t lanes, std::size_t free) {
  if (need.turns == 0 || need.all <= free) return 0;
  const std::size_t more = (free - need.least) / 2 / lanes;
  return std::min(need.turns, need.least_turns + more);
}

void make_room_to_meet(const bootstrap::Meeting& meeting) {
  const std::size_t need = star_connections(meeting.rank(), meeting.size()) + kOther;
  // Strangers that connect take some for a moment.
  verbs::make_room_for_descriptors(need + 3 * kOther);
  refuse_if_too_few(need, fmt::format("{} members that meet here", meeting.size()), "");
}

std::size_t make_room_for_lanes(const engine::Membership& membership, const verbs::Device& device) {
  const auto lanes = static_cast<std::size_t>(membership.lanes);
  const DescriptorNeed need = descriptors_of_lanes(membership, device);
  // Two members may call each other at the same time, and have two connections for a moment.
  verbs::make_room_for_descriptors(2 * (need.all + kOther));
  const std::string who = fmt::format("{} members and {} lane(s)", membership.members.count(), lanes);
  refuse_if_too_few(need.least + kOther, who, ", or take fewer lanes (NZCL_LANES)");
  const verbs::Descriptors now = verbs::read_descriptors();
  const std::size_t free = now.soft - now.open - kOther;
  const bool short_of_connections = need.all - lanes * need.turns > free;
  if (short_of_connections)
    log().warn(
        "{}: connections to all of them would take about {} descriptors in this process, but its hard limit "
        "is {} (RLIMIT_NOFILE). They are made when they are first needed, so operations that need more of "
        "them at a time will fail. {}",
        who, now.open + need.all + kOther, now.hard, advice(now.open + need.all + kOther));
  const std::size_t for_turns = descriptors_for_turns(need, lanes, free);
  if (for_turns > 0)
    log().info(
        "{}: {} of {} descriptors of peers are kept at a time, as the hard limit is {} (RLIMIT_NOFILE)", who,
        for_turns, need.turns, now.hard);
  return for_turns;
}

}  // namespace nzcl::comm
