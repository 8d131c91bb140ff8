// The memory that the devices of a host return from Device::allocate().
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "verbs/segment/mapping.h"

namespace nzcl::verbs::segment {

/// A range of that memory, in the form that travels.
struct SharedRange {
  std::uint64_t address = 0, bytes = 0;
};

/// Owns memory that peers can map. Thread-safe.
class SharedMemories {
 public:
  /// Throws Error{system}.
  std::span<std::byte> allocate(std::size_t bytes);
  void release(std::span<std::byte> bytes) noexcept;

  struct Shared {
    SharedRange range;
    int fd = -1;  // stays open as long as the memory is not released
  };
  /// The memory that begins within `wanted`, or all of it if `wanted` is empty.
  std::vector<Shared> within(std::span<const std::byte> wanted) const;

 private:
  struct Memory {
    Fd fd;
    Mapping mapping;
  };
  mutable std::mutex mutex_;
  std::vector<Memory> memories_;
};

}  // namespace nzcl::verbs::segment
