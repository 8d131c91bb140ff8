#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "verbs/ibv/handles.h"
#include "verbs/ibv/port.h"
#include "verbs/ibv/queue_pair.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ibv {

/// One port of an RDMA device, opened through libibverbs, with its protection domain and its limits.
/// Thread-safe.
class IbvDevice final : public Device {
 public:
  explicit IbvDevice(const DeviceOptions& options);

  std::string name() const override { return name_; }
  const Limits& limits() const noexcept override { return limits_; }
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override;
  std::unique_ptr<MemoryRegion> register_gpu_memory(const GpuMemory& memory) override;
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override;

  // --- For endpoints only.
  ibv_context* context() const { return open_.context.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  const Port& port() const { return open_.port; }
  const ibv_device_attr& attributes() const { return attributes_; }
  const ConnectionOptions& connection() const { return connection_; }
  /// Reads the device's asynchronous events. Returns true once a fatal event has come. It may run on the data
  /// path, but it makes a system call, so call it rarely.
  bool check_events() noexcept;
  /// The text of the fatal event. Precondition: check_events() has returned true.
  std::string fatal_event() const;

 private:
  void require_on_demand_paging();

  OpenPort open_;
  Handle<ibv_pd> domain_;
  ibv_device_attr attributes_{};
  ConnectionOptions connection_;
  std::string name_;
  Limits limits_;
  unsigned access_ = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  mutable std::mutex event_mutex_;  // one thread reads events at a time; check_events() only tries the lock
  std::string fatal_text_;
  std::atomic<bool> fatal_{false};
};

std::shared_ptr<Device> open_device(const DeviceOptions& options);
TransportInfo probe();
/// Limits::link_gbps of the device that open_device() would open. Throws what that throws.
double link_gbps(const DeviceOptions& options);

}  // namespace nzcl::verbs::ibv
