// The content of an nzclUniqueId: where rank 0 will listen, and the secret of the job.
#pragma once

#include <string>

#include "nzcl/nzcl.h"

namespace nzcl::capi {

struct UniqueId {
  std::string host;
  int port = 0;
  std::string secret;
};

/// Chooses a free port of this host and makes a new secret. The host's address is NZCL_MASTER_ADDR if that is
/// set, else the first address that is not loopback, else 127.0.0.1. Nobody holds the port until rank 0
/// listens on it, so another process may take it before.
UniqueId make_unique_id();

/// Throws Error{invalid_argument} if the address of the host is too long.
void write_unique_id(const UniqueId& content, nzclUniqueId& id);
/// Throws Error{invalid_argument} for bytes that write_unique_id() has not written.
UniqueId read_unique_id(const nzclUniqueId& id);

}  // namespace nzcl::capi
