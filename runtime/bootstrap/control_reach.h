// Whether the process of another member lives, which members find out by its listening port when nobody is
// left to tell them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/bootstrap/secure_stream.h"

namespace nzcl::bootstrap {

/// How long one address may take to answer before it counts as one that cannot be reached.
inline constexpr std::chrono::milliseconds kReachTime{500};

/// Whether somebody listens on `port` at one of these addresses. A member listens for as long as its process
/// lives, and the system accepts connections for it even while it is stopped or busy. So a member that cannot
/// be reached at any address has died, or its host has vanished. Ends early, with true, once `over` returns
/// true.
asio::awaitable<bool> is_reachable(std::vector<std::string> hosts, int port, std::function<bool()> over);

}  // namespace nzcl::bootstrap
