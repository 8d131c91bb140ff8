// Composes a contribution's message: long runs stay where they are, short ones are copied behind the header.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/base/cold_memory.h"
#include "runtime/kernels/stream_copy.h"
#include "runtime/plan/tuning.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Builds the gather list of a message, over one staging buffer and the user's memory, in message order. It
/// owns neither.
class MessageBuilder {
 public:
  struct Limits {
    std::size_t segments = 1;        // entries of the gather list; with 1, everything is copied
    std::uint64_t gather_bytes = 0;  // runs of at least this size are gathered
    std::uint64_t bytes = 0;         // of the whole message: the size of a slot
    bool streamed = false;           // what is copied is stored past the caches
  };
  MessageBuilder(const Limits& limits, std::byte* staging, const verbs::MemoryRegion* staging_region)
      : limits_(limits), staging_(staging), staging_region_(staging_region) {}

  /// Returns room in the staging buffer, for a part of the message that the caller composes there.
  std::byte* reserve(std::uint32_t bytes) {
    std::byte* at = staging_ + staged_;
    extend_staged(bytes);
    return at;
  }
  /// Adds a run of bytes, gathered or copied. `left` is the number of bytes that may still follow in this
  /// message, with this run. Returns false, and adds nothing, if no gather entry is left for it.
  bool add(const std::byte* data, std::uint64_t bytes, const verbs::MemoryRegion* region,
           std::uint64_t left) {
    const std::size_t free_segments = limits_.segments - count_;
    // A long run of registered memory gets an entry of its own, unless the entries would run out at this rate
    // before half of the remaining bytes are in the message.
    if (region != nullptr && free_segments > 0 && bytes >= limits_.gather_bytes &&
        bytes * free_segments >= left / 2) {
      segments_[count_++] = {data, static_cast<std::uint32_t>(bytes), region};
      last_is_staged_ = false;
      gathered_ += bytes;
      return true;
    }
    if (!last_is_staged_ && free_segments == 0) return false;
    std::byte* const to = reserve(static_cast<std::uint32_t>(bytes));
    if (limits_.streamed && bytes >= kLeastStreamedRun) {
      copy_past_caches(to, data, bytes);
    } else {
      copy_cold(to, data, bytes);
    }
    copied_ += bytes;
    return true;
  }
  /// Takes back the last `bytes` that were reserved, behind which nothing was added.
  void take_back(std::uint32_t bytes) {
    segments_[count_ - 1].bytes -= bytes;
    staged_ -= bytes;
  }
  /// Returns true if everything so far lies in the staging buffer, so that another section can be composed
  /// behind it.
  bool in_one_piece() const { return count_ == 1 && last_is_staged_; }
  const Limits& limits() const { return limits_; }
  std::uint64_t staged() const { return staged_; }
  /// Bytes of the whole message so far, how many more it takes, and how many entries its gather list has
  /// left.
  std::uint64_t bytes() const { return staged_ + gathered_; }
  std::uint64_t room() const { return limits_.bytes - bytes(); }
  std::size_t free_segments() const { return limits_.segments - count_; }
  /// Where reserve() will return room next.
  std::byte* next() const { return staging_ + staged_; }
  std::span<const verbs::Segment> segments() const { return {segments_.data(), count_}; }
  std::uint64_t copied() const { return copied_; }  // bytes of runs that were copied

 private:
  void extend_staged(std::uint32_t bytes) {
    if (last_is_staged_) {
      segments_[count_ - 1].bytes += bytes;
    } else {
      segments_[count_++] = {staging_ + staged_, bytes, staging_region_};
      last_is_staged_ = true;
    }
    staged_ += bytes;
  }

  const Limits limits_;
  std::byte* staging_;
  const verbs::MemoryRegion* staging_region_;
  std::array<verbs::Segment, verbs::kMaxSegments> segments_{};
  std::size_t count_ = 0;
  std::uint64_t staged_ = 0, gathered_ = 0, copied_ = 0;
  bool last_is_staged_ = false;
};

}  // namespace nzcl::engine
