// Transports by name.
#include "nzcl/error.h"
#include "verbs/ibv/device.h"
#include "verbs/ofi/device.h"
#include "verbs/transport.h"

namespace nzcl::verbs {

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  if (options.transport == "loopback") {
    throw Error(ErrorCode::unavailable,
                "transport loopback joins threads of one process: make the communicators from a LocalGroup");
  }
  if (options.transport == "ibverbs") return ibv::open_device(options);
  return ofi::open_device(options);
}

std::vector<TransportInfo> list_transports() {
  std::vector<TransportInfo> all{{"loopback", true, "threads of one process (LocalGroup)"}, ibv::probe()};
  for (const char* name : {"shm", "tcp", "verbs;ofi_rxm", "efa", "psm3", "opx", "net", "sockets"})
    all.push_back(ofi::probe(name));
  return all;
}

}  // namespace nzcl::verbs
