// A ring of bytes from one endpoint to another: writes to memory that the writer has not mapped, which the
// reader copies to their places.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "verbs/segment/ring.h"
#include "verbs/transport.h"

namespace nzcl::verbs::shm {

using segment::kLine;

/// The bytes of a ring, a power of two, and of the area that it takes in a segment.
inline constexpr std::size_t kBounceBytes = 512 << 10;
inline constexpr std::size_t kBounceArea = kBounceBytes + 4096;
/// The largest write: a ring with nothing in it has room for it wherever it begins.
inline constexpr std::size_t kMostBounced = kBounceBytes - 2 * kLine;

/// The layout of the area: [written][taken] in a line each, and the ring from the second page on. Both count
/// bytes since the beginning. A record begins at a line: [BounceRecord, one line][its bytes], and the next
/// one begins at the next line behind them. A record does not go beyond the end of the ring: a write that
/// would is cut in two, of which the first may be empty.
struct BounceRecord {
  std::uint64_t address = 0, key = 0, bytes = 0;
};
static_assert(sizeof(BounceRecord) <= kLine);

class BounceRing {
 public:
  using Count = std::atomic<std::uint64_t>;
  static_assert(Count::is_always_lock_free, "two processes share them");

  BounceRing() = default;
  explicit BounceRing(std::byte* area) : area_(area) {}
  bool exists() const { return area_ != nullptr; }
  Count& written() const { return *reinterpret_cast<Count*>(area_); }
  Count& taken() const { return *reinterpret_cast<Count*>(area_ + kLine); }
  std::byte* at(std::uint64_t count) const { return area_ + 4096 + count % kBounceBytes; }
  /// Bytes from there to the end of the ring.
  static std::size_t to_end(std::uint64_t count) { return kBounceBytes - count % kBounceBytes; }
  static std::uint64_t in_lines(std::uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

 private:
  std::byte* area_ = nullptr;
};

/// For one thread of the writing process.
class BounceWriter {
 public:
  BounceWriter() = default;
  explicit BounceWriter(BounceRing ring) : ring_(ring) {}

  /// Copies the write into the ring. Returns false, and has done nothing, if there is no room. Precondition:
  /// it has `bytes` bytes, at most kMostBounced.
  bool push(const Write& write, std::uint64_t bytes) noexcept {
    const std::uint64_t first = std::min<std::uint64_t>(bytes, BounceRing::to_end(written_) - kLine);
    const std::uint64_t second = bytes - first;
    const std::uint64_t need =
        kLine + BounceRing::in_lines(first) + (second > 0 ? kLine + BounceRing::in_lines(second) : 0);
    if (!has_room(need)) return false;
    Source source{write.segments, 0};
    std::uint64_t at = put(written_, source, write.target, first);
    if (second > 0) at = put(at, source, write.target.offset(first), second);
    written_ = at;
    ring_.written().store(written_, std::memory_order_release);
    return true;
  }

 private:
  struct Source {  // what is left of a gather list
    std::span<const Segment> segments;
    std::size_t begun;  // bytes of the first segment that have been copied
  };

  /// The reader's count is believed only if it is possible.
  bool has_room(std::uint64_t bytes) noexcept {
    const auto fits = [&] {
      const std::uint64_t used = written_ - taken_;
      return used <= kBounceBytes && bytes <= kBounceBytes - used;
    };
    if (fits()) return true;
    taken_ = ring_.taken().load(std::memory_order_acquire);
    return fits();
  }
  /// Writes a record at `count`. Returns where the next one begins.
  std::uint64_t put(std::uint64_t count, Source& source, RemoteMemory target, std::uint64_t bytes) noexcept {
    const BounceRecord record{target.address, target.key, bytes};
    std::memcpy(ring_.at(count), &record, sizeof record);
    count += kLine;
    std::byte* to = bytes > 0 ? ring_.at(count) : nullptr;
    for (std::uint64_t left = bytes; left > 0;) {
      const Segment& s = source.segments.front();
      const std::size_t part = std::min<std::uint64_t>(left, s.bytes - source.begun);
      std::memcpy(to, s.data + source.begun, part);
      to += part, left -= part, source.begun += part;
      if (source.begun == s.bytes) source = {source.segments.subspan(1), 0};
    }
    return count + BounceRing::in_lines(bytes);
  }

  BounceRing ring_;
  std::uint64_t written_ = 0;
  std::uint64_t taken_ = 0;  // the reader's count when it was last loaded
};

/// For one thread of the reading process. Nothing that the writer says is believed.
class BounceReader {
 public:
  BounceReader() = default;  // never finds anything
  explicit BounceReader(BounceRing ring) : ring_(ring) {}

  bool empty() const noexcept {
    return !ring_.exists() || ring_.written().load(std::memory_order_acquire) == read_;
  }
  /// Gives `place` each record and its bytes, in order. Returns what is wrong with one, as a part of a
  /// sentence, or nullptr. place(record, bytes) returns the same. Precondition: the ring exists.
  template <typename Place>
  const char* take(Place place) noexcept {
    const std::uint64_t written = ring_.written().load(std::memory_order_acquire);
    if (written - read_ > kBounceBytes) return "has written beyond the end of its ring";
    while (written - read_ >= kLine) {
      BounceRecord record;  // a copy, because the peer may change it at any time
      std::memcpy(&record, ring_.at(read_), sizeof record);
      if (record.bytes > BounceRing::to_end(read_) - kLine ||
          kLine + BounceRing::in_lines(record.bytes) > written - read_)
        return "has announced more bytes than it has written";
      if (record.bytes > 0) {
        if (const char* wrong = place(record, ring_.at(read_ + kLine))) return wrong;
      }
      read_ += kLine + BounceRing::in_lines(record.bytes);
      ring_.taken().store(read_, std::memory_order_release);
    }
    return written == read_ ? nullptr : "has written a part of a line";
  }

 private:
  BounceRing ring_;
  std::uint64_t read_ = 0;
};

}  // namespace nzcl::verbs::shm
