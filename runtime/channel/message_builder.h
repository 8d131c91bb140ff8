// Composes a contribution's message: long runs stay where they are, short ones are copied behind the header.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "runtime/base/cold_memory.h"
#include "runtime/channel/slot_writer.h"
#include "runtime/kernels/stream_copy.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/message.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Builds the gather list of a message, over one staging buffer and the user's memory, in message order. It
/// owns neither. No message becomes longer than its slot: what does not fit is not added, and the caller is
/// told so.
class MessageBuilder {
 public:
  struct Limits {
    std::size_t segments = 1;                    // entries of the gather list; with 1, everything is copied
    std::uint64_t gather_bytes = 0;              // runs of at least this size are gathered
    std::uint64_t bytes = 0;                     // of the whole message: the size of a slot
    bool streamed = false;                       // what is copied is stored past the caches
    verbs::Level level = verbs::Level::between;  // of the receiver
  };
  MessageBuilder(const Limits& limits, std::byte* staging, const verbs::MemoryRegion* staging_region)
      : limits_(limits), staging_(staging, limits.bytes), staging_region_(staging_region) {}

  /// Returns room in the staging buffer, for a part of the message that the caller composes there. Returns
  /// nullptr, and adds nothing, if the message has no room or no gather entry for it.
  [[nodiscard]] std::byte* reserve(std::uint64_t bytes) {
    if (bytes > room() || (!last_is_staged_ && free_segments() == 0)) return nullptr;
    std::byte* const at = staging_.take(bytes);
    extend_staged(at, bytes);
    return at;
  }
  /// The same for a part that is copied. Returns false if there is no room.
  [[nodiscard]] bool put(const void* data, std::uint64_t bytes) {
    if (bytes == 0) return true;
    std::byte* const at = reserve(bytes);
    if (at != nullptr) std::memcpy(at, data, bytes);
    return at != nullptr;
  }
  /// Adds zeros up to a multiple of `alignment`. Returns false, and adds nothing, if there is no room.
  [[nodiscard]] bool align(std::uint64_t alignment) {
    const std::uint64_t filler = (alignment - bytes() % alignment) % alignment;
    if (filler == 0) return true;
    std::byte* const at = reserve(filler);
    if (at != nullptr) std::memset(at, 0, filler);
    return at != nullptr;
  }
  /// Adds a run of bytes, gathered or copied. `left` is the number of bytes that may still follow in this
  /// message, with this run. Returns false, and adds nothing, if no room or no gather entry is left for it.
  [[nodiscard]] bool add(const std::byte* data, std::uint64_t bytes, const verbs::MemoryRegion* region,
                         std::uint64_t left) {
    if (bytes > room()) return false;
    const std::size_t free = free_segments();
    // A long run of registered memory gets an entry of its own, unless the entries would run out at this rate
    // before half of the remaining bytes are in the message.
    if (region != nullptr && free > 0 && bytes >= limits_.gather_bytes && bytes * free >= left / 2) {
      segments_[count_++] = {data, static_cast<std::uint32_t>(bytes), region};
      last_is_staged_ = false;
      gathered_ += bytes;
      return true;
    }
    std::byte* const to = reserve(bytes);
    if (to == nullptr) return false;
    if (limits_.streamed && bytes >= kLeastStreamedRun) {
      copy_past_caches(to, data, bytes);
    } else {
      copy_cold(to, data, bytes);
    }
    copied_ += bytes;
    return true;
  }
  /// Adds bytes that only the transport reads, behind those of the same memory that come right before them,
  /// if there are any. Returns false, and adds nothing, if no room or no gather entry is left.
  [[nodiscard]] bool add_far(const std::byte* data, std::uint64_t bytes, const verbs::MemoryRegion* region) {
    if (bytes > room()) return false;
    verbs::Segment* const last = count_ > 0 && !last_is_staged_ ? &segments_[count_ - 1] : nullptr;
    if (last != nullptr && last->region == region && last->data + last->bytes == data) {
      last->bytes += static_cast<std::uint32_t>(bytes);
    } else {
      if (free_segments() == 0) return false;
      segments_[count_++] = {data, static_cast<std::uint32_t>(bytes), region};
      last_is_staged_ = false;
    }
    gathered_ += bytes;
    return true;
  }
  /// Takes back what was reserved since staged() was `staged`. Precondition: nothing was gathered since.
  void take_back_to(std::uint64_t staged) {
    if (staged == this->staged()) return;
    segments_[count_ - 1].bytes -= static_cast<std::uint32_t>(this->staged() - staged);
    staging_.take_back_to(staged);
    if (segments_[count_ - 1].bytes > 0) return;
    --count_;  // what stays may end with a run of the caller's memory, or be nothing
    last_is_staged_ = false;
  }
  /// Notes that a section ends here, whose header is at `header`, and tells in the header of the one before
  /// it that another one follows. Returns its size, with what is gathered. Precondition: those before it
  /// gather nothing.
  std::uint64_t end_section(std::byte* header) {
    if (last_header_ != nullptr) wire::add_flag(last_header_, wire::kMore);
    last_header_ = header;
    ++sections_;
    return bytes() - static_cast<std::uint64_t>(header - staging_.begin());
  }
  std::uint32_t sections() const { return sections_; }
  /// Returns true if everything so far lies in the staging buffer, so that another section can be composed
  /// behind it.
  bool in_one_piece() const { return count_ == 1 && last_is_staged_; }
  const Limits& limits() const { return limits_; }
  std::uint64_t staged() const { return staging_.bytes(); }
  /// Bytes of the whole message so far, how many more it takes, and how many entries its gather list has
  /// left.
  std::uint64_t bytes() const { return staged() + gathered_; }
  std::uint64_t room() const { return limits_.bytes - bytes(); }
  std::size_t free_segments() const { return limits_.segments - count_; }
  /// Where reserve() will return room next.
  std::byte* next() const { return staging_.next(); }
  std::span<const verbs::Segment> segments() const { return {segments_.data(), count_}; }
  std::uint64_t copied() const { return copied_; }  // bytes of runs that were copied

 private:
  void extend_staged(std::byte* at, std::uint64_t bytes) {
    if (last_is_staged_) {
      segments_[count_ - 1].bytes += static_cast<std::uint32_t>(bytes);
    } else {
      segments_[count_++] = {at, static_cast<std::uint32_t>(bytes), staging_region_};
      last_is_staged_ = true;
    }
  }

  const Limits limits_;
  SlotWriter staging_;
  const verbs::MemoryRegion* staging_region_;
  std::array<verbs::Segment, verbs::kMaxSegments> segments_{};
  std::size_t count_ = 0;
  std::uint64_t gathered_ = 0, copied_ = 0;
  bool last_is_staged_ = false;
  std::byte* last_header_ = nullptr;  // of the last section
  std::uint32_t sections_ = 0;
};

}  // namespace nzcl::engine
