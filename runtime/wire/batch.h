// A batch: the contributions of several ranks to one slice in one message, each as it came from its rank.
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

/// Begins a rank's contribution in a batch. The slice's bitmap and the payload follow.
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

/// The fixed parts of a batch. The payload lies in the slot.
struct Batch {
  Header header;
  OperationRecord record;  // the sender's
  std::span<const std::byte> payload;
};

/// Reads the fixed parts of the batch in a slot, and checks their form. If the slot has none, `wrong` says
/// why, as a part of a sentence.
inline std::optional<Batch> read_batch(std::span<const std::byte> slot, const char*& wrong) {
  Batch batch;
  Header& h = batch.header;
  constexpr std::uint64_t kFixed = sizeof(Header) + sizeof(OperationRecord);
  const auto refuse = [&](const char* why) {
    wrong = why;
    return std::nullopt;
  };
  if (slot.size() < kFixed) return refuse("its slot is too small");
  std::memcpy(&h, slot.data(), sizeof h);
  std::memcpy(&batch.record, slot.data() + sizeof h, sizeof batch.record);
  if (h.magic != kMagic) return refuse("it does not begin with nzcl's magic number");
  if (h.version != kVersion) return refuse("it is of another version");
  if (h.flags != (kHasBitmap | kBatch)) return refuse("its flags are not those of a batch");
  if (h.stream_offset != 0 || h.direct_writes != 0 || h.tiles != 0)
    return refuse("it has fields that a batch has not");
  if (h.payload_bytes > slot.size() - kFixed) return refuse("it is longer than its slot");
  batch.payload = slot.subspan(kFixed, h.payload_bytes);
  return batch;
}

/// One contribution of a batch. The spans lead into the payload.
struct Entry {
  std::uint16_t refusal_code = 0;
  std::span<const std::byte> bitmap, payload;
  std::uint64_t end = 0;  // where the next entry begins in the batch's payload
};

/// Reads a batch entry by entry. Every length is checked before anything behind it is touched.
class EntryReader {
 public:
  explicit EntryReader(const Batch& batch)
      : payload_(batch.payload), bitmap_bytes_(batch.header.bitmap_bytes) {}

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
                 payload_.subspan(bitmap + bitmap_bytes_, fixed.payload_bytes), at_};
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
