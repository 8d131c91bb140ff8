// What survives when a communicator fails: the opened device, and the memory that is registered with it.
#pragma once

#include <memory>

#include "runtime/comm/session/registrations.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// Shared by all communicators that use the device, one after another or at the same time. With it, ranks
/// that survive a failure can make a new communicator without registering their buffers again. Thread-safe.
class Session {
 public:
  explicit Session(std::shared_ptr<verbs::Device> device)
      : device_(std::move(device)), registrations_(device_) {}

  const std::shared_ptr<verbs::Device>& device() const { return device_; }
  const Registrations& registrations() const { return registrations_; }
  Registrations& registrations() { return registrations_; }
  /// Throws Error{invalid_argument, unsupported, unavailable, system}.
  std::shared_ptr<Registration> register_memory(void* data, std::size_t bytes, MemoryKind kind);

 private:
  std::shared_ptr<Registration> register_gpu_memory(std::span<std::byte> range);

  const std::shared_ptr<verbs::Device> device_;
  Registrations registrations_;
};

}  // namespace nzcl::comm
