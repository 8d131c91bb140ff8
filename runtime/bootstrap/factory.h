// Chooses the meeting that a process takes part in, from its options and from what its launcher tells it.
#pragma once

#include <memory>

#include "nzcl/options.h"
#include "runtime/bootstrap/environment.h"
#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// The decision, made before any file or connection is opened.
struct Choice {
  enum class Kind { self, socket, file, pmix } kind = Kind::self;
  int position = 0, size = 1;  // of this member in the meeting; PMIx tells them only later
  std::string host;            // for sockets
  int port = 0;                // for sockets
  std::string path;            // for files; "": a file named after the launcher's job
  std::string why;             // the reason for this choice, for people: "from MASTER_ADDR"
};

/// `number` is that of a dedicated aggregator, or -1. Has no side effects. Throws Error{invalid_argument}
/// that says which variables to set.
Choice choose(const Options& options, const LaunchEnvironment& environment, Role role, int number);

/// Makes the meeting that choose() decides on. Throws what choose() throws. To meet throws
/// Error{denied} if the ranks would meet at an address that other hosts can reach, but there is no secret.
std::unique_ptr<Meeting> make_meeting(const Options& options, Role role, int number);
/// The same for rank 0, for processes that any launcher has started. Throws Error{invalid_argument} if
/// nothing says where these find it.
std::unique_ptr<Meeting> make_open_meeting(const Options& options);

}  // namespace nzcl::bootstrap
