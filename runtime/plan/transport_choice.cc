#include "runtime/plan/transport_choice.h"

namespace nzcl::engine {

std::string transport_of(const Options& o, const Membership& m) {
  if (o.transport != "auto") return o.transport;
  // libfabric's shm fails with an I/O error if the memory of some members may be written and that of others
  // may not. verbs/GOTCHAS.md says why.
  if (!m.hosts.all_together() || m.process_spaces.leave_some_out()) return "tcp";
  return m.process_spaces.all_together() ? "cma" : "shm";
}

}  // namespace nzcl::engine
