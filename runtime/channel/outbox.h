// The writes that exchanges want posted, in order. The outbox separates protocol from I/O: the lane posts
// what is in it, and tests read it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/plan/engine_config.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// What is released when a write completes: a reference to a staging buffer, one of an operation's local
/// writes, or both if a message also gathers from the operation's input.
///
///     63             32 31          16 15     0
///     [staging buffer  ][operation    ][priority]    both are counted from 1; 0 stands for none
struct WriteContext {
  wire::Priority priority = wire::Priority::bulk;
  std::optional<std::uint32_t> staging = std::nullopt;
  std::optional<std::uint32_t> operation = std::nullopt;  // its index in the table of operations

  std::uint64_t encode() const {
    return static_cast<std::uint64_t>(priority) | std::uint64_t{operation ? *operation + 1 : 0} << 16 |
           std::uint64_t{staging ? *staging + 1 : 0} << 32;
  }
  static WriteContext decode(std::uint64_t bits) {
    const auto counted = [](std::uint64_t n) {
      return n == 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(n - 1));
    };
    return {.priority = static_cast<wire::Priority>(bits & 0xffff),
            .staging = counted(bits >> 32),
            .operation = counted(bits >> 16 & 0xffff)};
  }
};
static_assert(kMaxOperations < 0xffff);

/// A ring of pending writes with their gather lists. It never allocates after construction. For one thread.
class Outbox {
 public:
  static constexpr std::uint32_t kCapacity = kOutboxWrites;

  Outbox() : writes_(kCapacity), segments_(kCapacity) {}

  std::uint32_t room() const { return kCapacity - (tail_ - head_); }
  bool empty() const { return head_ == tail_; }
  /// Copies the gather list. Precondition: room() > 0, segments.size() <= verbs::kMaxSegments.
  void push(verbs::Write write, std::span<const verbs::Segment> segments) {
    const std::uint32_t i = tail_++ % kCapacity;
    std::copy(segments.begin(), segments.end(), segments_[i].begin());
    writes_[i] = write;
    writes_[i].segments = {segments_[i].data(), segments.size()};
  }
  /// The oldest pending writes, as far as they lie together in the ring.
  std::span<const verbs::Write> pending() const {
    const std::uint32_t i = head_ % kCapacity;
    return {writes_.data() + i, std::min(tail_ - head_, kCapacity - i)};
  }
  void pop(std::size_t n) {
    head_ += static_cast<std::uint32_t>(n);
    if (empty()) head_ = tail_ = 0;  // starts again with the first entries, which are still in cache
  }

 private:
  std::vector<verbs::Write> writes_;
  std::vector<std::array<verbs::Segment, verbs::kMaxSegments>> segments_;
  std::uint32_t head_ = 0;  // grows, and wraps at 2^32, which is a multiple of kCapacity
  std::uint32_t tail_ = 0;
};
static_assert((Outbox::kCapacity & (Outbox::kCapacity - 1)) == 0);

}  // namespace nzcl::engine
