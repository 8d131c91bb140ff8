// Whether the process of another member lives, as members find out by its listening port when nobody is
// left to tell them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/bootstrap/secure_stream.h"

namespace nzcl::bootstrap {

/// How long one address may take to answer before it counts as one that cannot be reached.
inline constexpr std::chrono::milliseconds kReachTime{500};

/// What came of calling a member's port.
enum class Reach {
  accepts,  // somebody listens
  refuses,  // nobody does, on a host that answers
  silent,   // nothing answers
};

/// Calls `port` at each of these addresses. A member listens for as long as its process lives, and the system
/// accepts connections for it even while it is stopped or busy. So a member whose port refuses has died, and
/// one that is silent at every address has a host that has vanished, or cannot be reached from here. Ends
/// early, with `accepts`, once `over` returns true.
asio::awaitable<Reach> reach(std::vector<std::string> hosts, int port, std::function<bool()> over);

}  // namespace nzcl::bootstrap
