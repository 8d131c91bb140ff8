// What survives when a communicator fails: the opened device, and the memory that is registered with it.
#pragma once

#include <memory>
#include <optional>

#include "runtime/comm/session/registrations.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// Shared by all communicators that use the device, one after another or at the same time. With it, ranks
/// that survive a failure can make a new communicator without registering their buffers again. Thread-safe.
/// A communicator that needs another device gets a session of its own by onto().
class Session {
 public:
  /// `options` are those by which the device has been opened, if it was opened by options.
  explicit Session(std::shared_ptr<verbs::Device> device, std::optional<verbs::DeviceOptions> options = {})
      : device_(std::move(device)), options_(std::move(options)), registrations_(device_) {}
  /// A session of the other device, in which all buffers are registered that are registered here. They stay
  /// so as long as their handles here live. Throws what the device throws.
  std::shared_ptr<Session> onto(std::shared_ptr<verbs::Device> device, verbs::DeviceOptions options) const;

  const std::optional<verbs::DeviceOptions>& options() const { return options_; }
  const std::shared_ptr<verbs::Device>& device() const { return device_; }
  const Registrations& registrations() const { return registrations_; }
  Registrations& registrations() { return registrations_; }
  /// Throws Error{invalid_argument, unsupported, unavailable, system}.
  std::shared_ptr<Registration> register_memory(void* data, std::size_t bytes, MemoryKind kind);

 private:
  std::shared_ptr<Registration> register_gpu_memory(std::span<std::byte> range);

  const std::shared_ptr<verbs::Device> device_;
  const std::optional<verbs::DeviceOptions> options_;
  Registrations registrations_;
};

}  // namespace nzcl::comm
