// Transports through libfabric: reliable-datagram endpoints of any provider that has one-sided writes with
// remote completion data.
#pragma once

#include <memory>

#include "verbs/transport.h"

namespace nzcl::verbs::ofi {

/// "shm", "tcp" (the best of libfabric's providers over TCP) or a provider by libfabric's own name. Throws
/// Error{unavailable} with libfabric's reason.
std::shared_ptr<Device> open_device(const DeviceOptions& options);
/// Whether open_device would work, and why not.
TransportInfo probe(const std::string& transport);

}  // namespace nzcl::verbs::ofi
