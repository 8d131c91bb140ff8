// Processes of one host write each other's memory themselves: by memcpy where it is shared, else by the
// kernel's cross-memory attach (process_vm_writev(2)).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "verbs/cma/handles.h"
#include "verbs/transport.h"

namespace nzcl::verbs::cma {

/// Memory of a device that peers may map: where it is here, and by which descriptor they get it.
struct SharedMemory {
  std::uint64_t address = 0, bytes = 0;
  std::int32_t fd = -1;
  std::int32_t reserved = 0;
};

/// Thread-safe.
class CmaDevice final : public Device {
 public:
  CmaDevice();
  std::string name() const override { return "cma"; }
  const Limits& limits() const noexcept override { return limits_; }
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override;
  std::span<std::byte> allocate(std::size_t bytes) override;
  void release(std::span<std::byte> bytes) noexcept override;
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override;

  std::vector<SharedMemory> memories() const;

 private:
  struct Memory {
    Fd fd;
    Mapping mapping;
  };
  Limits limits_;
  mutable std::mutex mutex_;
  std::vector<Memory> memories_;
};

/// Throws Error{unavailable} when this process may not write others' memory.
std::shared_ptr<Device> open_device(const DeviceOptions& options);
TransportInfo probe();

}  // namespace nzcl::verbs::cma
