// Which meeting a process goes to, from the options and from what its launcher told it.
#pragma once

#include <memory>

#include "nzcl/options.h"
#include "runtime/bootstrap/bootstrap.h"
#include "runtime/bootstrap/environment.h"

namespace nzcl::bootstrap {

/// What was decided, before anything is opened.
struct Choice {
  enum class Kind { self, socket, file, pmix } kind = Kind::self;
  int index = 0, size = 1;  // of the meeting; for pmix its server knows
  std::string host;         // socket
  int port = 0;
  std::string path;  // file; "" = made up from the launcher's job
  std::string why;   // for people: "from MASTER_ADDR"
};

/// Pure. `number`: of a dedicated aggregator, or -1. Throws Error{invalid_argument} saying what to set.
Choice choose(const Options& options, const LaunchEnvironment& environment, Role role, int number);

/// The meeting for this process. Throws as above, and Error{denied} for a socket beyond this host without a
/// secret.
std::unique_ptr<Bootstrap> make_bootstrap(const Options& options, Role role, int number);

}  // namespace nzcl::bootstrap
