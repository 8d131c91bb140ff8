// A meeting over TCP: member 0 listens, the others connect, prove the key, say who they are, and talk through
// it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

/// Where member 0 can be reached, and the key that both sides prove.
struct MeetingPlace {
  std::vector<std::string> hosts;  // names or addresses, tried in turn
  int port = 0;
  std::string secret;
};

struct StarSettings {
  int index = 0, size = 1;
  std::string session;                   // only members of the same session meet
  std::string who;                       // "rank 3 (pid 17 on host)"
  std::function<std::string(int)> name;  // of a member that may not have come: "rank 3"
  std::string place;                     // for people: "socket 10.0.0.1:29500 (from MASTER_ADDR)"
};

/// Member 0. Listens on `place.hosts[0]` ("" = every interface), port 0 = any, from the first allgather until
/// all have come. `on_listening` is told the port; `on_met` is called when all have come.
std::unique_ptr<Bootstrap> make_star_hub(StarSettings settings, MeetingPlace place,
                                         std::function<void(int port)> on_listening = {},
                                         std::function<void()> on_met = {});

/// The others. `find` is asked before every attempt, nullopt = not known yet. `secret_is_sure`: whoever
/// answers without knowing the secret is a reason to give up (otherwise it may be a leftover of another job,
/// and the place is looked up again).
std::unique_ptr<Bootstrap> make_star_member(StarSettings settings,
                                            std::function<std::optional<MeetingPlace>()> find,
                                            bool secret_is_sure);

}  // namespace nzcl::bootstrap
