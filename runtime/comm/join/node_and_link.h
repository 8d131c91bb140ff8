// What each member finds out about its own place only when it has planned its threads and opened its device:
// the NUMA node that it is on, how fast its link is, and how its host's cores read memory fastest.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/membership.h"

namespace nzcl::comm {

/// What a member says about itself, after its Hello. It is sent as JSON.
struct NodeAndLink {
  int node = -1;  // of its threads and channels; -1: they are on several
  engine::LinkSpeed link;
  int scan_streams = 0;  // that are read fastest here; 0: it has not measured it

  std::string encode() const;
  /// Throws Error{mismatch} that names the sender `who` for a text that is not valid.
  static NodeAndLink decode(const std::string& text, const std::string& who);
};

/// Of the workers of each host one measures how many streams are read fastest there: the first. If all did it
/// at the same time, they would disturb each other. Returns 0 on the other members.
int measure_scan_streams(const engine::Membership& membership);

/// Enters what all members say, by their positions in the meeting, into the membership.
void enter_nodes_and_links(const std::vector<std::string>& told, engine::Membership& membership);

}  // namespace nzcl::comm
