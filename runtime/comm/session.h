// What survives when a communicator fails: the opened device, and the memory that is registered with it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "nzcl/options.h"
#include "runtime/comm/registrations.h"
#include "runtime/plan/membership.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// Opens the device that `options` ask for. With transport "auto", chooses the transport that suits these
/// members.
std::shared_ptr<verbs::Device> open_transport(const Options& options, const engine::Membership& membership,
                                              int numa_node);

/// Shared by all communicators that use the device, one after another or at the same time. With it, ranks
/// that survive a failure can make a new communicator without registering their buffers again. Thread-safe.
class Session {
 public:
  /// `numa_node` is the node for which device, slots and threads were chosen, or -1.
  Session(std::shared_ptr<verbs::Device> device, int numa_node)
      : device_(std::move(device)), numa_node_(numa_node), registrations_(device_) {}

  const std::shared_ptr<verbs::Device>& device() const { return device_; }
  const Registrations& registrations() const { return registrations_; }
  /// Throws Error{invalid_argument, unsupported, system}. Logs a warning in the name of `member`, but only
  /// once, if the memory lies on another NUMA node than `numa_node`.
  std::shared_ptr<Registration> register_memory(void* data, std::size_t bytes, MemoryKind kind,
                                                const std::string& member);

 private:
  void warn_of_far_memory(std::span<const std::byte> range, const std::string& member);

  const std::shared_ptr<verbs::Device> device_;
  const int numa_node_;
  Registrations registrations_;
  std::atomic<bool> warned_{false};
};

}  // namespace nzcl::comm
