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

}  // namespace

void make_room_to_meet(const bootstrap::Meeting& meeting) {
  verbs::make_room_for_descriptors(star_connections(meeting.rank(), meeting.size()) + 4 * kOther);
}

void make_room_for_lanes(const engine::Membership& membership, const verbs::Limits& limits) {
  const auto peers = static_cast<std::uint64_t>(membership.members.count() - 1);
  const auto lanes = static_cast<std::uint64_t>(membership.lanes);
  const int position = membership.position_of[static_cast<std::size_t>(membership.members.self)];
  const std::uint64_t need = lanes * (limits.endpoint_descriptors + peers * limits.peer_descriptors) +
                             star_connections(position, membership.members.count()) + kOther;
  // Two members may call each other at the same time, and have two connections for a moment.
  verbs::make_room_for_descriptors(2 * need);
  const verbs::Descriptors now = verbs::read_descriptors();
  if (now.open + need <= now.soft) return;
  throw Error(
      ErrorCode::system,
      fmt::format(
          "{} members and {} lane(s) need about {} descriptors in this process, which has {} open; its hard "
          "limit is {} (RLIMIT_NOFILE). Raise it to {} at least (ulimit -Hn, LimitNOFILE of systemd, "
          "docker run --ulimit nofile), or take fewer lanes (NZCL_LANES)",
          peers + 1, lanes, now.open + need, now.open, now.hard, now.open + need));
}

}  // namespace nzcl::comm
