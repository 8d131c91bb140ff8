// How ranks that have no secret prove to each other that they belong to the same user of one host.
//
// Loopback addresses can be reached by every user of the host, so they prove nothing. Member 0 therefore
// makes a random key for its meeting, and hands it out through a Unix socket, over which the kernel tells
// each side who is at the other end (SO_PEERCRED in unix(7)). README.md says why it is done in this way.
#pragma once

#include <sys/socket.h>

#include <asio.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// Why a process is not trusted to be of the same job, or nullopt if it is: it must be of this user, and in
/// this process's PID namespace. `peer` is what the kernel says of it.
std::optional<std::string> why_not_trusted(const ucred& peer);

/// Hands a key to processes of this user, on the thread of its io_context.
class KeyDesk {
 public:
  struct Settings {
    int port = 0;      // of the meeting on this host, after which the socket is named
    std::string key;   // at most 100 bytes
    std::string name;  // stands in the log's lines
    /// Sets a descriptor free when the process has none left, and returns false if it cannot.
    std::function<bool()> make_room;
  };
  /// Throws std::system_error, with the code address_in_use if another process holds the name.
  KeyDesk(asio::io_context& io, Settings settings);
  ~KeyDesk();
  KeyDesk(const KeyDesk&) = delete;
  KeyDesk& operator=(const KeyDesk&) = delete;

  /// Which process was refused last, and why; "" if none was.
  const std::string& last_refusal() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the coroutine, which may outlive the desk
};

/// The key that is handed out for the meeting at `port` of this host, or the reason why there is none yet.
/// Waits for the other side, but not longer than two seconds. Throws Error{denied} if the other side is not
/// trusted, or does not trust this process.
std::variant<std::string, NotYet> ask_for_key(int port);

}  // namespace nzcl::bootstrap
