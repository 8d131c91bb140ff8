// Which memory of this process peers may have written, and by which keys.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace nzcl::verbs::shm {

/// The regions that are registered with a device. Thread-safe; write() neither locks nor waits.
///
/// A key has the place of a region in the table and a random number:
/// 63                          24 23         0
/// [ random, and not 0            ][ place    ]
/// No key is used twice, but by chance, so a key of a region that is gone is refused.
///
/// How no byte is written to memory after its region is gone: who writes counts itself into the place, and
/// then compares the key. remove() takes the key away and then waits until nobody is counted there. All four
/// steps are sequentially consistent, so either the writer sees that the key is gone, or remove() sees the
/// writer.
class RegionTable {
 public:
  RegionTable() = default;
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  /// Returns the key of the new region. Throws Error{system} if there are 2^24 regions.
  std::uint64_t add(std::span<std::byte> bytes);
  /// Afterwards nothing is written there by this key. Waits while somebody writes.
  void remove(std::uint64_t key) noexcept;
  /// Copies `bytes` bytes to `address`, if they lie in the region with this key. Returns false otherwise.
  bool write(std::uint64_t key, std::uint64_t address, const std::byte* from, std::uint64_t bytes) noexcept;

 private:
  struct Place {
    std::atomic<std::uint64_t> key{0};  // 0: no region
    std::atomic<std::uint32_t> writers{0};
    std::byte* begin = nullptr;  // set before the key is
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t kFirst = 64, kChunks = 18;  // chunk c has kFirst << c places
  static constexpr std::uint64_t kMost = (kFirst << kChunks) - kFirst;
  static constexpr int kPlaceBits = 24;
  static_assert(kMost <= std::uint64_t{1} << kPlaceBits);

  /// The place of that number, or nullptr if the table has never been so large.
  Place* find(std::uint64_t number) const noexcept;
  std::uint64_t free_place();

  std::array<std::atomic<Place*>, kChunks> chunks_{};
  std::mutex mutex_;                 // guards all below
  std::uint64_t used_ = 0;           // places that have been given away at least once
  std::vector<std::uint64_t> free_;  // of these, those that are free; always has room for all of them
};

}  // namespace nzcl::verbs::shm
