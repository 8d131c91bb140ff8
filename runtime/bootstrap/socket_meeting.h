// A meeting at the address and port that all members are told, as MASTER_ADDR and MASTER_PORT tell them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

struct SocketPlace {
  std::string host;  // name or address of member 0's host
  int port = 0;
  std::string why;     // where host and port come from, for error messages: "from MASTER_ADDR"
  std::string secret;  // "": the members prove that they belong to the same user of one host (user_key.h)
  std::function<Addresses(const std::string&)> resolve = bootstrap::resolve;  // tests bring their own
};

/// A name that cannot be resolved yet is asked for again until the deadline. Without a secret,
/// place() and find() throw Error{denied} if other hosts can reach the address.
std::unique_ptr<Meeting> make_socket_meeting(MeetingSettings settings, SocketPlace place);

}  // namespace nzcl::bootstrap
