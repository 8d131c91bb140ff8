// The transport between processes of one host. Each process writes its peers' memory itself: by memcpy where
// that is shared memory, otherwise by the kernel's cross-memory attach (process_vm_writev(2)).
#pragma once

#include <memory>
#include <string>

#include "verbs/segment/shared_memories.h"
#include "verbs/transport.h"

namespace nzcl::verbs::cma {

/// Owns the shared memory that allocate() returns. Thread-safe.
class CmaDevice final : public Device {
 public:
  CmaDevice();
  std::string name() const override { return "cma"; }
  const Limits& limits() const noexcept override { return limits_; }
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override;
  std::span<std::byte> allocate(std::size_t bytes) override { return memories_.allocate(bytes); }
  void release(std::span<std::byte> bytes) noexcept override { memories_.release(bytes); }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override;
  std::unique_ptr<Trial> begin_trial(const TrialOptions& options) override;

  const segment::SharedMemories& memories() const { return memories_; }

 private:
  Limits limits_;
  segment::SharedMemories memories_;
};

/// Throws Error{unavailable} if this process may not write the memory of others.
std::shared_ptr<Device> open_device(const DeviceOptions& options);
TransportInfo probe();

}  // namespace nzcl::verbs::cma
