// What a nzclUniqueId holds: where rank 0 will listen, and the secret of the job.
#pragma once

#include <string>

#include "nzcl/nzcl.h"

namespace nzcl::capi {

struct UniqueId {
  std::string host;
  int port = 0;
  std::string secret;
};

/// A free port on this host, its address as others reach it (NZCL_MASTER_ADDR if set, else the first address
/// that is not loopback, else 127.0.0.1), and a fresh secret. The port is free when it is chosen; rank 0
/// takes it when it joins.
UniqueId make_unique_id();

void write_unique_id(const UniqueId& place, nzclUniqueId& id);
/// Throws Error{invalid_argument} for bytes that write_unique_id did not make.
UniqueId read_unique_id(const nzclUniqueId& id);

}  // namespace nzcl::capi
