// Composes the payload of a contribution: long runs stay where they are, short ones are packed beside the
// header.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/base/cold_memory.h"
#include "runtime/engine/config.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// A gather list over one staging buffer and the user's memory, in message order. No ownership.
class PayloadBuilder {
 public:
  PayloadBuilder(const EngineConfig& config, wire::Class size_class, std::byte* staging,
                 const verbs::MemoryRegion* staging_region)
      : max_segments_(config.segments_of(size_class)),
        gather_bytes_(config.gather_bytes),
        staging_(staging),
        staging_region_(staging_region) {}

  /// Room in the staging buffer for a part of the message that is composed in place.
  std::byte* reserve(std::uint32_t bytes) {
    std::byte* at = staging_ + staged_;
    extend_staged(bytes);
    return at;
  }
  /// Adds a run. `left` is what the message may still take, this run included; false: no gather entry is
  /// left.
  bool add(const std::byte* data, std::uint64_t bytes, const verbs::MemoryRegion* region,
           std::uint64_t left) {
    const std::size_t free_segments = max_segments_ - count_;
    // A gather entry is worth it for a long run, if at this rate the entries that are left would not end the
    // message half empty.
    if (free_segments > 0 && bytes >= gather_bytes_ && bytes * free_segments >= left / 2) {
      segments_[count_++] = {data, static_cast<std::uint32_t>(bytes), region};
      last_is_staged_ = false;
      return true;
    }
    if (!last_is_staged_ && free_segments == 0) return false;
    copy_cold(reserve(static_cast<std::uint32_t>(bytes)), data, bytes);
    packed_ += bytes;
    return true;
  }
  /// All that there is so far lies in the staging buffer: another section can be composed behind it.
  bool in_one_piece() const { return count_ == 1 && last_is_staged_; }
  std::uint64_t staged() const { return staged_; }
  std::span<const verbs::Segment> segments() const { return {segments_.data(), count_}; }
  std::uint64_t packed() const { return packed_; }

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

  const std::size_t max_segments_;
  const std::uint64_t gather_bytes_;
  std::byte* staging_;
  const verbs::MemoryRegion* staging_region_;
  std::array<verbs::Segment, verbs::kMaxSegments> segments_{};
  std::size_t count_ = 0;
  std::uint64_t staged_ = 0, packed_ = 0;
  bool last_is_staged_ = false;
};

}  // namespace nzcl::engine
