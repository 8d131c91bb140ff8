#include "runtime/comm/session/registrations.h"

#include <algorithm>
#include <atomic>

#include "runtime/base/own_process.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {
namespace {

bool covers(std::span<const std::byte> outer, std::span<const std::byte> inner) {
  return inner.data() >= outer.data() && inner.data() + inner.size() <= outer.data() + outer.size();
}

/// All objects of this process. It is never destroyed, since communicators may be static objects too. A child
/// made by fork() begins with one of its own, because the parent's mutex may have been locked at that moment.
struct Everywhere {
  OwnProcess process;
  std::mutex mutex;
  std::vector<const Registrations*> all;
  static Everywhere& instance() {
    static std::atomic<Everywhere*> current = nullptr;
    Everywhere* found = current.load();
    while (found == nullptr || !found->process.is_current()) {
      auto mine = std::make_unique<Everywhere>();
      if (current.compare_exchange_strong(found, mine.get())) return *mine.release();
    }
    return *found;
  }
};

}  // namespace

Registrations::Registrations(std::shared_ptr<verbs::Device> device) : device_(std::move(device)) {
  Everywhere& everywhere = Everywhere::instance();
  const std::scoped_lock lock(everywhere.mutex);
  everywhere.all.push_back(this);
}

/// What was adopted ends here, although the handles that it was made for may live on.
Registrations::~Registrations() {
  std::vector<std::shared_ptr<Registration>> released;  // after the lock
  Everywhere& everywhere = Everywhere::instance();
  const std::scoped_lock lock(everywhere.mutex);
  std::erase(everywhere.all, this);
  for (const Adopted& adopted : adopted_) {
    released.push_back(adopted.of.lock());
    released.push_back(adopted.handle.lock());
    if (released.end()[-2] && released.back()) std::erase(released.end()[-2]->elsewhere, released.back());
  }
}

bool Registrations::is_covered_elsewhere(std::span<const std::byte> bytes) const {
  Everywhere& everywhere = Everywhere::instance();
  const std::scoped_lock lock(everywhere.mutex);
  return std::any_of(everywhere.all.begin(), everywhere.all.end(), [&](const Registrations* other) {
    return other != this && other->find(bytes) != nullptr;
  });
}

std::shared_ptr<Registration> Registrations::add(std::span<std::byte> bytes, MemoryKind kind) {
  SharedRegion region = find(bytes);
  if (!region) region = share(device_->register_memory(bytes, kind));
  auto handle = std::make_shared<Registration>(Registration{std::move(region), bytes, kind});
  remember(handle);
  return handle;
}

std::vector<std::shared_ptr<Registration>> Registrations::living() const {
  std::vector<std::shared_ptr<Registration>> all;
  const std::scoped_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (auto handle = entry.handle.lock()) all.push_back(std::move(handle));
  }
  return all;
}

void Registrations::add_to(Registrations& others) const {
  for (const auto& handle : living()) {
    auto added =
        handle->gpu ? others.add(handle->bytes, handle->gpu) : others.add(handle->bytes, handle->kind);
    others.adopted_.push_back({handle, added});
    const std::scoped_lock lock(Everywhere::instance().mutex);
    handle->elsewhere.push_back(std::move(added));
  }
}

std::shared_ptr<Registration> Registrations::add(std::span<std::byte> bytes, std::shared_ptr<gpu::Gpu> gpu) {
  auto handle =
      std::make_shared<Registration>(Registration{.region = nullptr, .bytes = bytes, .gpu = std::move(gpu)});
  has_gpu_memory_.store(true, std::memory_order_relaxed);
  remember(handle);
  return handle;
}

std::shared_ptr<gpu::Gpu> Registrations::gpu_of(std::span<const std::byte> bytes) const {
  if (!has_gpu_memory_.load(std::memory_order_relaxed)) return nullptr;
  std::shared_ptr<Registration> handle;  // released after the lock, as in find()
  const std::scoped_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (!covers(entry.bytes, bytes)) continue;
    handle = entry.handle.lock();
    if (handle) return handle->gpu;
  }
  return nullptr;
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

std::weak_ptr<const Registration> Registrations::handle_of(std::span<const std::byte> bytes) const {
  const std::scoped_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (covers(entry.bytes, bytes) && !entry.handle.expired()) return entry.handle;
  }
  return {};
}

bool Registrations::was_released(std::span<const std::byte> bytes) const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return covers(entry.bytes, bytes) && entry.handle.expired();
  });
}

SharedRegion Registrations::add_gpu_memory(const verbs::GpuMemory& memory) const {
  return share(device_->register_gpu_memory(memory));
}

SharedRegion Registrations::share(std::unique_ptr<verbs::MemoryRegion> region) const {
  struct Owner {  // in this order, so that the region is destroyed before its device
    std::shared_ptr<verbs::Device> device;
    std::unique_ptr<verbs::MemoryRegion> region;
  };
  // A forked child must not deregister the memory.
  const auto owner = shared_in_own_process(new Owner{device_, std::move(region)});
  return {owner, owner->region.get()};
}

void Registrations::remember(const std::shared_ptr<Registration>& handle) {
  const std::scoped_lock lock(mutex_);
  auto surplus = std::count_if(entries_.begin(), entries_.end(),
                               [](const Entry& entry) { return entry.handle.expired(); }) -
                 engine::kRememberedHandles;
  std::erase_if(entries_, [&](const Entry& entry) { return entry.handle.expired() && surplus-- > 0; });
  entries_.push_back({handle->bytes, handle});
}

}  // namespace nzcl::comm
