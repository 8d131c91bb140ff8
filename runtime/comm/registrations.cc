#include "runtime/comm/registrations.h"

#include <algorithm>

namespace nzcl::comm {

std::shared_ptr<Registration> Registrations::add(std::span<std::byte> bytes, MemoryKind kind) {
  auto registration = std::make_shared<Registration>(Registration{device_, cache_.get(bytes, kind), bytes});
  const std::scoped_lock lock(mutex_);
  std::erase_if(entries_, [](const auto& entry) { return entry.expired(); });
  entries_.push_back(registration);
  return registration;
}

std::shared_ptr<Registration> Registrations::find(const void* data, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  const std::scoped_lock lock(mutex_);
  for (const auto& entry : entries_) {
    auto registration = entry.lock();
    if (!registration) continue;
    const auto range = registration->bytes;
    if (first >= range.data() && first + bytes <= range.data() + range.size()) return registration;
  }
  return nullptr;
}

}  // namespace nzcl::comm
