// A communicator that has some of the members of another one: by a split, as a level of a hierarchy, or
// because it was shrunk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/bootstrap/meeting.h"
#include "runtime/comm/join/join.h"

namespace nzcl::comm {

/// What a member needs to join such a communicator.
struct Part {
  Introduction introduction;
  std::unique_ptr<bootstrap::Meeting> meeting;  // uses the whole's control plane
};

/// What a member of both knows of the part, whose members are given by their numbers in the whole, workers
/// first. It takes the whole's share of the machine, and its options. `session` is added to the whole's.
Introduction introduce_part(const Introduction& whole, const std::vector<int>& members, int workers,
                            const std::string& session);

/// The settings of the part's meeting for this member, and for error messages the place where it meets.
bootstrap::MeetingSettings meeting_of_part(const Introduction& part, std::string point_name);

}  // namespace nzcl::comm
