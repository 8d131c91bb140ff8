// Transports through libfabric: reliable-datagram endpoints of any provider that has one-sided writes with
// remote completion data.
#pragma once

#include <memory>

#include "verbs/transport.h"

namespace nzcl::verbs::ofi {

/// Opens "libfabric-shm" (its provider shm), "tcp" (the best of libfabric's providers over TCP) or a provider
/// by libfabric's own name. Throws Error{unavailable} with libfabric's reason.
std::shared_ptr<Device> open_device(const DeviceOptions& options);
/// Limits::link_gbps of the device that open_device() would open. Throws what that throws.
double link_gbps(const DeviceOptions& options);
/// Tells whether open_device() would work, and if not, why.
TransportInfo probe(const std::string& transport);

}  // namespace nzcl::verbs::ofi
