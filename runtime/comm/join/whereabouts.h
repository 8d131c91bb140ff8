// What a member tells all others as soon as it has opened its device.
#pragma once

#include <string>
#include <vector>

#include "runtime/bootstrap/control.h"
#include "runtime/plan/membership.h"

namespace nzcl::comm {

/// Where the rest of the communicator finds this member, and what it has. It is sent as a list of two
/// strings.
struct Whereabouts {
  std::string port;           // ControlPlane::open_port()
  std::string node_and_link;  // NodeAndLink::encode()

  std::string encode() const;
  /// Throws Error{mismatch} that names the sender `who` for a text that is not such a list. What the two say
  /// is checked by those who read them.
  static Whereabouts decode(const std::string& text, const std::string& who);
};

/// Enters what all members have told, by their positions in the meeting: the control plane settles, and the
/// membership learns the members' nodes and links. Throws Error{mismatch}.
void take_whereabouts(const std::vector<std::string>& told, bootstrap::ControlPlane& control,
                      engine::Membership& membership);

}  // namespace nzcl::comm
