#include "runtime/comm/join/descriptor_need.h"

#include <fmt/format.h>

#include <cstdint>

#include "nzcl/error.h"
#include "verbs/descriptors.h"

namespace nzcl::comm {
namespace {

/// What a member opens for a moment beside all else: files of the system, sockets that are being accepted.
constexpr std::uint64_t kOther = 8;

/// Member 0 has a connection to each of the others, and every other member has one to member 0, and a port.
std::uint64_t star_connections(int rank, int size) {
  return rank == 0 ? static_cast<std::uint64_t>(size) : 2;
}

/// Throws if that many more descriptors do not fit. `who` needs them, and `advice` is what else would help.
void refuse_if_too_few(std::uint64_t need, const std::string& who, const std::string& advice) {
  const verbs::Descriptors now = verbs::read_descriptors();
  if (now.open + need <= now.soft) return;
  throw Error(
      ErrorCode::system,
      fmt::format(
          "{} need about {} descriptors in this process, which has {} open; its hard limit is {} "
          "(RLIMIT_NOFILE). Raise it to {} at least (ulimit -Hn, LimitNOFILE of systemd, docker run --ulimit "
          "nofile){}",
          who, now.open + need, now.open, now.hard, now.open + need, advice));
}

/// The descriptors that an endpoint and its connections to the peers take.
std::uint64_t endpoint_need(const engine::Membership& membership, const verbs::Device& device) {
  const auto peers = static_cast<std::uint64_t>(membership.members.count() - 1);
  const verbs::Limits& all = device.limits();
  if (!device.is_mixed()) return all.endpoint_descriptors + peers * all.peer_descriptors;
  const auto within = static_cast<std::uint64_t>(membership.hosts.size_of(membership.members.self) - 1);
  return all.endpoint_descriptors + within * device.limits_at(verbs::Level::within).peer_descriptors +
         (peers - within) * device.limits_at(verbs::Level::between).peer_descriptors;
}

}  // namespace

void make_room_to_meet(const bootstrap::Meeting& meeting) {
  const std::uint64_t need = star_connections(meeting.rank(), meeting.size()) + kOther;
  // Strangers that connect take some for a moment.
  verbs::make_room_for_descriptors(need + 3 * kOther);
  refuse_if_too_few(need, fmt::format("{} members that meet here", meeting.size()), "");
}

void make_room_for_lanes(const engine::Membership& membership, const verbs::Device& device) {
  const auto peers = static_cast<std::uint64_t>(membership.members.count() - 1);
  const auto lanes = static_cast<std::uint64_t>(membership.lanes);
  const int position = membership.position_of[static_cast<std::size_t>(membership.members.self)];
  const std::uint64_t need = lanes * endpoint_need(membership, device) +
                             star_connections(position, membership.members.count()) + kOther;
  // Two members may call each other at the same time, and have two connections for a moment.
  verbs::make_room_for_descriptors(2 * need);
  refuse_if_too_few(need, fmt::format("{} members and {} lane(s)", peers + 1, lanes),
                    ", or take fewer lanes (NZCL_LANES)");
}

}  // namespace nzcl::comm
