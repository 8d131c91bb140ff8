#include "verbs/registration_cache.h"

namespace nzcl::verbs {

std::shared_ptr<const MemoryRegion> RegistrationCache::get(std::span<std::byte> bytes, MemoryKind kind) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(regions_, [](const auto& region) { return region.expired(); });
  for (const auto& weak : regions_) {
    auto region = weak.lock();
    if (!region) continue;
    const auto known = region->bytes();
    if (bytes.data() >= known.data() && bytes.data() + bytes.size() <= known.data() + known.size())
      return region;
  }
  std::shared_ptr<const MemoryRegion> region = device_.register_memory(bytes, kind);
  regions_.push_back(region);
  return region;
}

}  // namespace nzcl::verbs
