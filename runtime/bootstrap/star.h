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
#include <string>
#include <variant>
#include <vector>

#include "runtime/bootstrap/addresses.h"
#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

/// Where member 0 can be reached, and the secret that both sides prove to know.
struct MeetingPoint {
  Addresses addresses;  // which the members try in turn
  int port = 0;
  std::string secret;
};

/// Where member 0 listens.
struct HubPlace {
  Addresses addresses;  // none: on every interface
  int port = 0;         // 0: the system chooses one
  std::string secret;
  /// The secret is this meeting's own. Member 0 hands it to processes of its user on its host (user_key.h).
  bool for_this_user = false;
};

/// What stands in for a place that is not known yet. It is asked for again until the deadline.
struct NotYet {
  std::string why;
  /// It may be long until the place is known: this is logged once, and asked for less often.
  bool for_long = false;
};

struct StarSettings {
  int position = 0, size = 1;            // of this member, and of the meeting
  std::string session;                   // only members of the same session meet
  std::string who;                       // this member, for error messages: "rank 3 (pid 17 on host)"
  std::function<std::string(int)> name;  // the member at a position, for error messages: "rank 3"
  std::string point_name;  // the meeting point, for error messages: "10.0.0.1:29500 (from MASTER_ADDR)"
};

/// Makes member 0. It listens from the first allgather until all members have come. `find` is called before
/// every attempt to listen; what it throws ends the meeting. `on_listening` is called with the port; `on_met`
/// is called when all members have come.
std::unique_ptr<Bootstrap> make_star_hub(StarSettings settings,
                                         std::function<std::variant<HubPlace, NotYet>()> find,
                                         std::function<void(int port)> on_listening = {},
                                         std::function<void()> on_met = {});

/// Makes any other member. `find` is called before every attempt to connect; what it throws ends the meeting.
/// If somebody who does not know the secret answers at the meeting point, the member gives up when
/// `secret_is_sure`. Otherwise the meeting point may have been left over by another job, and `find` is called
/// again.
std::unique_ptr<Bootstrap> make_star_member(StarSettings settings,
                                            std::function<std::variant<MeetingPoint, NotYet>()> find,
                                            bool secret_is_sure);

}  // namespace nzcl::bootstrap
