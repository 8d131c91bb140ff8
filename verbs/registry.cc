// Transports by name.
#include "nzcl/error.h"
#include "verbs/ofi/device.h"
#include "verbs/transport.h"

namespace nzcl::verbs {

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  if (options.transport == "loopback") {
    throw Error(ErrorCode::unavailable,
                "transport loopback joins threads of one process: make the communicators from a LocalGroup");
  }
  if (options.transport == "ibverbs") {
    throw Error(ErrorCode::unavailable,
                "transport ibverbs (the native verbs backend) is not part of this version; verbs;ofi_rxm "
                "reaches the same devices through libfabric");
  }
  return ofi::open_device(options);
}

std::vector<TransportInfo> list_transports() {
  std::vector<TransportInfo> all{
      {"loopback", true, "threads of one process (LocalGroup)"},
      {"ibverbs", false, "the native verbs backend is not part of this version; use verbs;ofi_rxm"}};
  for (const char* name : {"shm", "tcp", "verbs;ofi_rxm", "efa", "psm3", "opx", "net", "sockets"})
    all.push_back(ofi::probe(name));
  return all;
}

}  // namespace nzcl::verbs
