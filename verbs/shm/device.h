// The transport between processes of one host that share a /dev/shm and need not be allowed to write each
// other's memory.
#pragma once

#include <memory>

#include "verbs/segment/device.h"
#include "verbs/shm/region_table.h"
#include "verbs/transport.h"

namespace nzcl::verbs::shm {

/// Knows what is registered. Thread-safe.
class ShmDevice final : public segment::SegmentDevice {
 public:
  ShmDevice();
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override;
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override;
  std::unique_ptr<Trial> begin_trial(const TrialOptions& options) override;

  RegionTable& regions() { return regions_; }

 private:
  RegionTable regions_;
};

/// Throws Error{unavailable} if this process cannot meet others in /dev/shm.
std::shared_ptr<Device> open_device(const DeviceOptions& options);
TransportInfo probe();

}  // namespace nzcl::verbs::shm
