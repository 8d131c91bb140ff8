// A device that joins two others: one reaches the peers within the host, the other one those of other hosts.
#pragma once

#include <memory>
#include <string>

#include "verbs/transport.h"

namespace nzcl::verbs::mixed {

/// Thread-safe, as both devices are. README.md says who is told what.
class MixedDevice final : public Device {
 public:
  MixedDevice(std::shared_ptr<Device> between, std::shared_ptr<Device> within);

  std::string name() const override;
  std::string name_at(Level level) const override { return at(level).name(); }
  const Limits& limits() const noexcept override { return limits_; }
  const Limits& limits_at(Level level) const noexcept override { return at(level).limits(); }
  bool is_mixed() const noexcept override { return true; }
  /// Registers with both devices.
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override;
  /// Memory of the device within the host. The other one takes any memory.
  std::span<std::byte> allocate(std::size_t bytes) override { return within_->allocate(bytes); }
  void release(std::span<std::byte> bytes) noexcept override { within_->release(bytes); }
  /// Opens an endpoint of one device if all peers are at its level.
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override;
  /// Of the members of this host.
  std::unique_ptr<Trial> begin_trial(const TrialOptions& options) override;

 private:
  Device& at(Level level) const { return level == Level::within ? *within_ : *between_; }

  const std::shared_ptr<Device> between_, within_;
  const Limits limits_;
};

/// Opens both transports of a pair of names. Throws what opening either of them throws.
std::shared_ptr<Device> open_device(const DeviceOptions& options);

}  // namespace nzcl::verbs::mixed
