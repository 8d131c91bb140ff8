// Writes that the engines want posted, in order. Separates protocol from I/O: tests read it, the lane flushes
// it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/config.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// What a write's completion gives back: a reference on a staging buffer, or one of an operation's local
/// writes.
struct WriteContext {
  enum class Kind : std::uint8_t { none = 0, staging = 1, operation = 2 };
  Kind kind = Kind::none;
  wire::Class size_class = wire::Class::bulk;
  std::uint32_t index = 0;  // staging buffer, or place in the table of operations

  std::uint64_t encode() const {
    return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(size_class) << 8 |
           static_cast<std::uint64_t>(index) << 32;
  }
  static WriteContext decode(std::uint64_t bits) {
    return {static_cast<Kind>(bits & 0xff), static_cast<wire::Class>(bits >> 8 & 0xff),
            static_cast<std::uint32_t>(bits >> 32)};
  }
};

/// Ring of pending writes with their gather lists. One thread. Never allocates after construction.
class Outbox {
 public:
  static constexpr std::uint32_t kCapacity = 512;

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
  /// The oldest pending writes that lie one after the other.
  std::span<const verbs::Write> pending() const {
    const std::uint32_t i = head_ % kCapacity;
    return {writes_.data() + i, std::min(tail_ - head_, kCapacity - i)};
  }
  void pop(std::size_t n) {
    head_ += static_cast<std::uint32_t>(n);
    if (empty()) head_ = tail_ = 0;  // the same few entries again: they are in cache
  }

 private:
  std::vector<verbs::Write> writes_;
  std::vector<std::array<verbs::Segment, verbs::kMaxSegments>> segments_;
  std::uint32_t head_ = 0;  // free-running; kCapacity divides 2^32
  std::uint32_t tail_ = 0;
};
static_assert((Outbox::kCapacity & (Outbox::kCapacity - 1)) == 0);

}  // namespace nzcl::engine
