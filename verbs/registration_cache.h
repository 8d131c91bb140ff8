// Registers each range of memory once.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "verbs/transport.h"

namespace nzcl::verbs {

/// Hands out shared regions: the same or an enclosed range gets the region that exists. A region ends with
/// its last handle, not later: a cache that outlives its users would hand out stale translations after free()
/// and malloc(). Thread-safe; control path.
class RegistrationCache {
 public:
  explicit RegistrationCache(Device& device) : device_(device) {}
  std::shared_ptr<const MemoryRegion> get(std::span<std::byte> bytes, MemoryKind kind);

 private:
  Device& device_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<const MemoryRegion>> regions_;
};

}  // namespace nzcl::verbs
