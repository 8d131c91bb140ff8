// Registered buffers in which messages are composed. The channels of one priority and lane share them, so
// that they stay in cache.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "verbs/transport.h"

namespace nzcl::engine {

/// A fixed number of equal buffers with reference counts. Whatever still reads a buffer has a reference to
/// it, such as a write that has not completed or a result that a receiver has not taken. The buffers are
/// numbered through, and lie one behind the other. They come in banks, one for each memory node that they lie
/// on (staging_banks.h). For one thread.
class StagingPool {
 public:
  using Index = std::uint32_t;
  using Bank = std::uint32_t;

  StagingPool() = default;
  /// Makes a pool. `banks` has the number of buffers of each bank.
  StagingPool(std::byte* base, std::uint64_t buffer_bytes, std::span<const std::uint32_t> banks,
              const verbs::MemoryRegion* region)
      : base_(base),
        buffer_bytes_(buffer_bytes),
        region_(region),
        references_(std::accumulate(banks.begin(), banks.end(), std::size_t{0}), 0),
        bank_of_(references_.size()),
        free_(banks.size()) {
    auto end = static_cast<Index>(references_.size());
    for (auto bank = static_cast<Bank>(banks.size()); bank-- > 0;) {
      for (std::uint32_t i = 0; i < banks[bank]; ++i) {
        bank_of_[--end] = bank;
        free_[bank].push_back(end);
      }
    }
  }
  StagingPool(std::byte* base, std::uint64_t buffer_bytes, std::uint32_t buffers,
              const verbs::MemoryRegion* region)
      : StagingPool(base, buffer_bytes, std::span(&buffers, 1), region) {}

  std::uint32_t available(Bank bank = 0) const { return static_cast<std::uint32_t>(free_[bank].size()); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(references_.size()); }
  /// Returns a buffer with one reference, which is the caller's. Precondition: available(bank) > 0.
  Index acquire(Bank bank = 0) {
    const Index index = free_[bank].back();
    free_[bank].pop_back();
    references_[index] = 1;
    return index;
  }
  void add_reference(Index index) { ++references_[index]; }
  /// Gives one reference back. The buffer is free again when there is none left.
  void release(Index index) {
    if (--references_[index] == 0) free_[bank_of_[index]].push_back(index);
  }
  std::byte* buffer(Index index) const { return base_ + index * buffer_bytes_; }
  const verbs::MemoryRegion* region() const { return region_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t buffer_bytes_ = 0;
  const verbs::MemoryRegion* region_ = nullptr;
  std::vector<std::uint32_t> references_;  // by buffer
  std::vector<Bank> bank_of_;              // by buffer
  std::vector<std::vector<Index>> free_;   // by bank
};

}  // namespace nzcl::engine
