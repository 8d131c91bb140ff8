#include "runtime/comm/join/part.h"

#include <utility>

namespace nzcl::comm {

Introduction introduce_part(const Introduction& whole, const std::vector<int>& members, int workers,
                            const std::string& session) {
  // All that are parts of one whole share its cores, as the members of the whole do.
  Introduction part{.options = whole.options,
                    .asked = whole.asked,
                    .membership = membership_among(whole.membership, members, workers),
                    .placement = whole.placement,
                    .wing = whole.wing};
  const engine::Members& own = part.membership.members;
  part.options.rank = own.is_worker(own.self) ? own.self : -1;
  part.options.world_size = own.workers;
  part.options.aggregators = own.dedicated;
  part.options.session += "." + session;
  return part;
}

bootstrap::MeetingSettings meeting_of_part(const Introduction& part, std::string point_name) {
  const engine::Membership& membership = part.membership;
  const auto self = static_cast<std::size_t>(membership.members.self);
  return {.position = membership.members.self,
          .size = membership.members.count(),
          .session = part.options.session,
          .who = membership.names[self],
          .name = [names = membership.names](int i) { return names[static_cast<std::size_t>(i)]; },
          .point_name = std::move(point_name)};
}

}  // namespace nzcl::comm
