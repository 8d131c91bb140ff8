// A meeting over TCP in the form of a star: member 0, the hub, listens, and every other member connects to
// it.
//
// Communication steps:
//  1. A member connects. Both sides prove the key in the TLS handshake (secure_stream.h).
//  2. The member sends a hello with its position, its session and the number of members that it expects.
//  3. The hub answers with a welcome; with "try again" if another session is meeting at this port; or with
//     an error. A member that has proved the key belongs to the job. If its hello does not fit, the job has
//     been started wrongly, so the hub sends the error to all members and the meeting fails.
//  4. In every round of the allgather each member sends its part to the hub. When all parts are there, the
//     hub sends the list of all parts to every member.
//
// README.md in this folder shows the frames.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

/// Where member 0 can be reached, and the secret that both sides prove to know.
struct MeetingPoint {
  std::vector<std::string> hosts;  // names or addresses, which the members try in turn
  int port = 0;
  std::string secret;
};

struct StarSettings {
  int position = 0, size = 1;            // of this member, and of the meeting
  std::string session;                   // only members of the same session meet
  std::string who;                       // this member, for error messages: "rank 3 (pid 17 on host)"
  std::function<std::string(int)> name;  // the member at a position, for error messages: "rank 3"
  std::string point_name;  // the meeting point, for error messages: "10.0.0.1:29500 (from MASTER_ADDR)"
};

/// Makes member 0. It listens on `point.hosts[0]`, or on every interface if that is "" or missing, from the
/// first allgather until all members have come. With port 0 the system chooses the port. `on_listening` is
/// called with the port; `on_met` is called when all members have come.
std::unique_ptr<Bootstrap> make_star_hub(StarSettings settings, MeetingPoint point,
                                         std::function<void(int port)> on_listening = {},
                                         std::function<void()> on_met = {});

/// Makes any other member. `find` is called before every attempt to connect, and returns nullopt as long as
/// the meeting point is not known. If somebody who does not know the secret answers at the meeting point, the
/// member gives up when `secret_is_sure`. Otherwise the meeting point may have been left over by another job,
/// and `find` is called again.
std::unique_ptr<Bootstrap> make_star_member(StarSettings settings,
                                            std::function<std::optional<MeetingPoint>()> find,
                                            bool secret_is_sure);

}  // namespace nzcl::bootstrap
