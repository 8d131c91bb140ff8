#include "runtime/comm/registrations.h"

#include <algorithm>

#include "runtime/base/own_process.h"

namespace nzcl::comm {
namespace {

/// How many destroyed handles are remembered, so that the error for a request on their memory can say what
/// happened.
constexpr std::ptrdiff_t kRemembered = 64;

bool covers(std::span<const std::byte> outer, std::span<const std::byte> inner) {
  return inner.data() >= outer.data() && inner.data() + inner.size() <= outer.data() + outer.size();
}

}  // namespace

std::shared_ptr<Registration> Registrations::add(std::span<std::byte> bytes, MemoryKind kind) {
  SharedRegion region = find(bytes);
  if (!region) region = make_region(bytes, kind);
  auto handle = std::make_shared<Registration>(Registration{std::move(region), bytes});
  remember(handle);
  return handle;
}

SharedRegion Registrations::find(std::span<const std::byte> bytes) const {
  // Declared before the lock, so that it is released after it: it may have become the last reference, and
  // then deregisters the memory, which must not happen under the lock.
  std::shared_ptr<Registration> handle;
  const std::scoped_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (!covers(entry.bytes, bytes)) continue;
    handle = entry.handle.lock();
    if (handle) return handle->region;
  }
  return nullptr;
}

bool Registrations::was_released(std::span<const std::byte> bytes) const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return covers(entry.bytes, bytes) && entry.handle.expired();
  });
}

SharedRegion Registrations::make_region(std::span<std::byte> bytes, MemoryKind kind) const {
  struct Owner {  // in this order, so that the region is destroyed before its device
    std::shared_ptr<verbs::Device> device;
    std::unique_ptr<verbs::MemoryRegion> region;
  };
  // A forked child must not deregister the memory.
  const auto owner = shared_in_own_process(new Owner{device_, device_->register_memory(bytes, kind)});
  return {owner, owner->region.get()};
}

void Registrations::remember(const std::shared_ptr<Registration>& handle) {
  const std::scoped_lock lock(mutex_);
  auto surplus = std::count_if(entries_.begin(), entries_.end(),
                               [](const Entry& entry) { return entry.handle.expired(); }) -
                 kRemembered;
  std::erase_if(entries_, [&](const Entry& entry) { return entry.handle.expired() && surplus-- > 0; });
  entries_.push_back({handle->bytes, handle});
}

}  // namespace nzcl::comm
