// A batch: what a rank passes on of other ranks' contributions to a slice, behind its own contribution.
// Bytes on the wire: runtime/wire/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"

namespace nzcl::wire {

/// Begins a rank's contribution in a batch. Its bitmap and the payload follow.
struct BatchEntry {
  std::uint32_t payload_bytes = 0;
  std::uint16_t refusal_code = 0;  // an nzcl::ErrorCode, if the rank has refused; the payload is the reason
  std::uint16_t reserved = 0;
};
static_assert(sizeof(BatchEntry) == 8 && std::is_trivially_copyable_v<BatchEntry>);

/// Bytes of an entry with what fills it up to where another one may begin.
constexpr std::uint64_t entry_bytes(std::uint64_t bitmap_bytes, std::uint64_t payload_bytes) {
  return aligned_section(sizeof(BatchEntry) + bitmap_bytes + payload_bytes);
}

/// A batch: its header, and its payload, which lies in the slot.
struct Batch {
  Header header;
  std::span<const std::byte> payload;
};

/// Reads the header of the batch that begins `at` bytes into a slot, and checks its form. If there is none,
/// `wrong` says why, as a part of a sentence.
inline std::optional<Batch> read_batch(std::span<const std::byte> slot, std::uint64_t at,
                                       const char*& wrong) {
  Batch batch;
  Header& h = batch.header;
  const auto refuse = [&](const char* why) {
    wrong = why;
    return std::nullopt;
  };
  if (at > slot.size() || slot.size() - at < sizeof h)
    return refuse("another section is announced where none can be");
  std::memcpy(&h, slot.data() + at, sizeof h);
  if (h.magic != kMagic) return refuse("its batch does not begin with nzcl's magic number");
  if (h.version != kVersion) return refuse("its batch is of another version");
  if (h.flags != kBatch) return refuse("its flags are not those of a batch");
  if (h.slice != 0 || h.stream_offset != 0 || h.bitmap_bytes != 0 || h.direct_writes != 0 || h.tiles != 0)
    return refuse("it has fields that a batch has not");
  if (h.payload_bytes > slot.size() - at - sizeof h) return refuse("it is longer than its slot");
  batch.payload = slot.subspan(at + sizeof h, h.payload_bytes);
  return batch;
}

/// One contribution of a batch. The spans lead into the payload.
struct Entry {
  std::uint16_t refusal_code = 0;
  std::span<const std::byte> bitmap, payload;
};

/// Reads a batch entry by entry. Every length is checked before anything behind it is touched.
class EntryReader {
 public:
  /// For contributions with bitmaps of this length.
  EntryReader(std::span<const std::byte> payload, std::uint64_t bitmap_bytes)
      : payload_(payload), bitmap_bytes_(bitmap_bytes) {}

  /// Returns the next entry, or nothing if there is none; wrong() then says why.
  std::optional<Entry> next() {
    BatchEntry fixed;
    if (payload_.size() - at_ < sizeof fixed) return refuse("a contribution is missing");
    std::memcpy(&fixed, payload_.data() + at_, sizeof fixed);
    const std::uint64_t bytes = entry_bytes(bitmap_bytes_, fixed.payload_bytes);  // cannot wrap in 64 bits
    if (bytes > payload_.size() - at_) return refuse("a contribution is longer than its message");
    if (fixed.refusal_code != 0 && !is_error_code(fixed.refusal_code))
      return refuse("its error code does not exist");
    if (fixed.refusal_code != 0 && fixed.payload_bytes > kMostRefusalText)
      return refuse("its reason for a refusal is too long");
    const std::uint64_t bitmap = at_ + sizeof fixed;
    at_ += bytes;
    return Entry{fixed.refusal_code, payload_.subspan(bitmap, bitmap_bytes_),
                 payload_.subspan(bitmap + bitmap_bytes_, fixed.payload_bytes)};
  }
  /// Returns true if nothing is left behind the last entry.
  bool at_end() const { return at_ == payload_.size(); }
  const char* wrong() const { return wrong_; }

 private:
  std::nullopt_t refuse(const char* why) {
    wrong_ = why;
    return std::nullopt;
  }

  std::span<const std::byte> payload_;
  const std::uint64_t bitmap_bytes_;
  std::uint64_t at_ = 0;
  const char* wrong_ = nullptr;
};

}  // namespace nzcl::wire
