// A ring that carries immediates from one endpoint to another, through memory that both map.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nzcl::verbs::segment {

inline constexpr std::size_t kLine = 64;

/// The layout of a ring: one cache line with the reader's count, then `entries` entries of 8 bytes, where
/// `entries` is a power of two. All bytes are zero at first. One process writes and one reads.
///
/// Each entry consists of two halves of 32 bits:
/// 63                              32 31         0
/// [ position + 1, modulo 2^32       ][ immediate ]
/// The reader sees from the entry alone that it is new, so that an immediate costs the transfer of one cache
/// line between the two cores. The reader stores its count only after each quarter of the ring, and the
/// writer loads it only when the ring seems to be full.
struct Ring {
  using Entry = std::atomic<std::uint64_t>;
  static_assert(Entry::is_always_lock_free, "two processes share them");

  static std::size_t bytes(std::uint32_t entries) { return kLine + entries * sizeof(Entry); }
  static std::uint64_t stamp(std::uint64_t position) { return (position + 1) << 32; }

  Entry& taken() const { return *reinterpret_cast<Entry*>(base); }
  Entry& at(std::uint64_t position) const {
    return reinterpret_cast<Entry*>(base + kLine)[position & (entries - 1)];
  }

  std::byte* base = nullptr;
  std::uint32_t entries = 0;
};

class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(Ring ring) : ring_(ring) {}

  bool full() {
    if (written_ - taken_ < ring_.entries) return false;
    taken_ = ring_.taken().load(std::memory_order_acquire);
    return written_ - taken_ >= ring_.entries;
  }
  /// Adds an immediate. Whatever the writer wrote before is visible to the reader that pops it. Precondition:
  /// !full().
  void push(std::uint32_t immediate) {
    ring_.at(written_).store(Ring::stamp(written_) | immediate, std::memory_order_release);
    ++written_;
  }

 private:
  Ring ring_;
  std::uint64_t written_ = 0;
  std::uint64_t taken_ = 0;  // the reader's count when it was last loaded
};

class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(Ring ring) : ring_(ring) {}
  /// A reader that never finds anything.
  static RingReader of_nothing() {
    alignas(kLine) static std::byte nothing[2 * kLine]{};
    return RingReader(Ring{nothing, 1});
  }

  bool empty() const { return !is_next(ring_.at(read_).load(std::memory_order_acquire)); }
  /// Takes the next immediate. Returns false if the ring is empty.
  bool pop(std::uint32_t& immediate) {
    const std::uint64_t entry = ring_.at(read_).load(std::memory_order_acquire);
    if (!is_next(entry)) return false;
    immediate = static_cast<std::uint32_t>(entry);
    ++read_;
    if ((read_ & (ring_.entries / 4 - 1)) == 0) ring_.taken().store(read_, std::memory_order_release);
    return true;
  }

 private:
  bool is_next(std::uint64_t entry) const { return entry >> 32 == Ring::stamp(read_) >> 32; }

  Ring ring_;
  std::uint64_t read_ = 0;
};

}  // namespace nzcl::verbs::segment
