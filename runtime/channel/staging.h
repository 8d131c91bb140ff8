// Registered buffers in which messages are composed. All channels of one priority and lane share them, so
// that they stay in cache.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "verbs/transport.h"

namespace nzcl::engine {

/// A fixed number of equal buffers with reference counts. Whatever still reads a buffer has a reference to
/// it, such as a write that has not completed or a result that a receiver has not taken. For one thread.
class StagingPool {
 public:
  using Index = std::uint32_t;

  StagingPool() = default;
  StagingPool(std::byte* base, std::uint64_t buffer_bytes, std::uint32_t buffers,
              const verbs::MemoryRegion* region)
      : base_(base), buffer_bytes_(buffer_bytes), region_(region), references_(buffers, 0) {
    for (std::uint32_t i = buffers; i-- > 0;) free_.push_back(i);
  }

  std::uint32_t available() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(references_.size()); }
  /// Returns a buffer with one reference, which is the caller's. Precondition: available() > 0.
  Index acquire() {
    const Index index = free_.back();
    free_.pop_back();
    references_[index] = 1;
    return index;
  }
  void add_reference(Index index) { ++references_[index]; }
  /// Gives one reference back. The buffer is free again when there is none left.
  void release(Index index) {
    if (--references_[index] == 0) free_.push_back(index);
  }
  std::byte* buffer(Index index) const { return base_ + index * buffer_bytes_; }
  const verbs::MemoryRegion* region() const { return region_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t buffer_bytes_ = 0;
  const verbs::MemoryRegion* region_ = nullptr;
  std::vector<std::uint32_t> references_;
  std::vector<Index> free_;
};

}  // namespace nzcl::engine
