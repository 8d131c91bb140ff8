// The transport between processes of one host. Each process writes its peers' memory itself: by memcpy where
// that is shared memory, otherwise by the kernel's cross-memory attach (process_vm_writev(2)).
#pragma once

#include <memory>

#include "verbs/segment/device.h"
#include "verbs/transport.h"

namespace nzcl::verbs::cma {

/// Thread-safe.
class CmaDevice final : public segment::SegmentDevice {
 public:
  CmaDevice();
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override;
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override;
  std::unique_ptr<Trial> begin_trial(const TrialOptions& options) override;
};

/// Throws Error{unavailable} if this process may not write the memory of others.
std::shared_ptr<Device> open_device(const DeviceOptions& options);
TransportInfo probe();

}  // namespace nzcl::verbs::cma
