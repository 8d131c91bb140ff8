// The transport between processes of one host that share a /dev/shm and need not be allowed to write each
// other's memory.
#pragma once

#include <memory>
#include <string>

#include "verbs/segment/shared_memories.h"
#include "verbs/shm/region_table.h"
#include "verbs/transport.h"

namespace nzcl::verbs::shm {

/// Owns the shared memory that allocate() returns, and knows what is registered. Thread-safe.
class ShmDevice final : public Device {
 public:
  ShmDevice();
  std::string name() const override { return "shm"; }
  const Limits& limits() const noexcept override { return limits_; }
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override;
  std::span<std::byte> allocate(std::size_t bytes) override { return memories_.allocate(bytes); }
  void release(std::span<std::byte> bytes) noexcept override { memories_.release(bytes); }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override;
  std::unique_ptr<Trial> begin_trial(const TrialOptions& options) override;

  const segment::SharedMemories& memories() const { return memories_; }
  RegionTable& regions() { return regions_; }

 private:
  Limits limits_;
  segment::SharedMemories memories_;
  RegionTable regions_;
};

/// Throws Error{unavailable} if this process cannot meet others in /dev/shm.
std::shared_ptr<Device> open_device(const DeviceOptions& options);
TransportInfo probe();

}  // namespace nzcl::verbs::shm
