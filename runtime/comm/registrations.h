// The buffers that are registered with one communicator.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "nzcl/types.h"
#include "verbs/registration_cache.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// Keeps a region and the device under it alive; what a RegisteredBuffer holds.
struct Registration {
  std::shared_ptr<verbs::Device> device;
  std::shared_ptr<const verbs::MemoryRegion> region;
  std::span<std::byte> bytes;
};

/// Thread-safe; control path.
class Registrations {
 public:
  explicit Registrations(std::shared_ptr<verbs::Device> device) : device_(device), cache_(*device) {}

  std::shared_ptr<Registration> add(std::span<std::byte> bytes, MemoryKind kind);
  /// The live registration that covers the range, or nullptr.
  std::shared_ptr<Registration> find(const void* data, std::size_t bytes);

 private:
  std::shared_ptr<verbs::Device> device_;
  verbs::RegistrationCache cache_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Registration>> entries_;
};

}  // namespace nzcl::comm
