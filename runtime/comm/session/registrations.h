// The buffers that are registered with one communicator.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "nzcl/types.h"
#include "runtime/gpu/gpu.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// A region that keeps its device alive. Handles of buffers hold it, and so do operations that have not
/// finished. The memory is deregistered when the last of them releases it.
using SharedRegion = std::shared_ptr<const verbs::MemoryRegion>;

/// What a RegisteredBuffer holds. As long as it lives, the caller must keep the memory mapped.
struct Registration {
  SharedRegion region;  // nullptr for memory of a GPU, which peers do not reach
  std::span<std::byte> bytes;
  MemoryKind kind = MemoryKind::host;
  /// Of the same memory, with other devices of this process (Registrations::add_to()).
  std::vector<std::shared_ptr<Registration>> elsewhere = {};
  std::shared_ptr<gpu::Gpu> gpu = nullptr;
};

/// Registers memory, and finds the region of memory that is registered. A range is not registered again while
/// a handle covers it. Operations hold regions too, but without a handle their memory may have been freed,
/// and other pages may lie at its address, so only handles count.
///
/// Thread-safe. Registering and deregistering are slow, so neither happens under the lock.
class Registrations {
 public:
  explicit Registrations(std::shared_ptr<verbs::Device> device);
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  /// Makes a handle for the range. A range that lies inside that of another handle shares its region. Throws
  /// the device's Error.
  std::shared_ptr<Registration> add(std::span<std::byte> bytes, MemoryKind kind);
  /// Registers memory of nzcl's own on a GPU, which no handle covers, with the transport. Throws the device's
  /// Error.
  SharedRegion add_gpu_memory(const verbs::GpuMemory& memory) const;
  /// Registers there what living handles cover here, until either these handles or `others` end.
  void add_to(Registrations& others) const;
  /// Makes a handle for memory of this GPU.
  std::shared_ptr<Registration> add(std::span<std::byte> bytes, std::shared_ptr<gpu::Gpu> gpu);
  /// Returns the GPU whose memory a living handle covers, or nullptr for all other memory.
  std::shared_ptr<gpu::Gpu> gpu_of(std::span<const std::byte> bytes) const;
  /// Returns the region of a living handle that covers the range, or nullptr if there is none.
  SharedRegion find(std::span<const std::byte> bytes) const;
  /// Returns that handle, in a form that does not keep the memory registered.
  std::weak_ptr<const Registration> handle_of(std::span<const std::byte> bytes) const;
  /// Returns true if a destroyed handle covered the range, for error messages. Only the last few are
  /// remembered.
  bool was_released(std::span<const std::byte> bytes) const;
  /// Returns true if another communicator of this process has a living handle that covers the range, for
  /// error messages.
  bool is_covered_elsewhere(std::span<const std::byte> bytes) const;

 private:
  struct Entry {
    std::span<const std::byte> bytes;
    std::weak_ptr<Registration> handle;
  };
  SharedRegion share(std::unique_ptr<verbs::MemoryRegion> region) const;
  void remember(const std::shared_ptr<Registration>& handle);

  /// A handle that was made for one of another object.
  struct Adopted {
    std::weak_ptr<Registration> of, handle;
  };
  std::vector<std::shared_ptr<Registration>> living() const;

  std::shared_ptr<verbs::Device> device_;
  std::vector<Adopted> adopted_;
  mutable std::mutex mutex_;
  std::atomic<bool> has_gpu_memory_{false};  // or has had some: without it nobody has to look for it
  std::vector<Entry> entries_;               // oldest first; some entries of destroyed handles are kept
};

}  // namespace nzcl::comm
