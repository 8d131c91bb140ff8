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

/// Rings of pending writes with their gather lists: one for each level, so that a network that takes no more
/// writes now does not hold up those within the host. They never allocate after construction. For one thread.
class Outbox {
 public:
  static constexpr std::uint32_t kCapacity = kOutboxWrites;  // of each ring
  using Level = verbs::Level;

  /// Without `mixed`, no write is pushed at any other level than Level::between.
  explicit Outbox(bool mixed = false) {
    rings_[0].make();
    if (mixed) rings_[1].make();
  }

  /// How many more writes there is room for, whatever their level.
  std::uint32_t room() const { return kCapacity - std::max(rings_[0].size(), rings_[1].size()); }
  bool empty() const { return rings_[0].size() == 0 && rings_[1].size() == 0; }
  /// Copies the gather list. Precondition: room() > 0, segments.size() <= verbs::kMaxSegments.
  void push(verbs::Write write, std::span<const verbs::Segment> segments, Level level = Level::between) {
    Ring& ring = at(level);
    const std::uint32_t i = ring.tail++ % kCapacity;
    std::copy(segments.begin(), segments.end(), ring.segments[i].begin());
    ring.writes[i] = write;
    ring.writes[i].segments = {ring.segments[i].data(), segments.size()};
  }
  /// The oldest pending writes of a level, as far as they lie together in its ring.
  std::span<const verbs::Write> pending(Level level = Level::between) const {
    const Ring& ring = rings_[static_cast<std::size_t>(level)];
    const std::uint32_t i = ring.head % kCapacity;
    return {ring.writes.data() + i, std::min(ring.size(), kCapacity - i)};
  }
  void pop(std::size_t n, Level level = Level::between) {
    Ring& ring = at(level);
    ring.head += static_cast<std::uint32_t>(n);
    if (ring.size() == 0)
      ring.head = ring.tail = 0;  // starts again with the first entries, which are still in cache
  }

 private:
  struct Ring {
    void make() { writes.resize(kCapacity), segments.resize(kCapacity); }
    std::uint32_t size() const { return tail - head; }

    std::vector<verbs::Write> writes;
    std::vector<std::array<verbs::Segment, verbs::kMaxSegments>> segments;
    std::uint32_t head = 0;  // grows, and wraps at 2^32, which is a multiple of kCapacity
    std::uint32_t tail = 0;
  };
  Ring& at(Level level) { return rings_[static_cast<std::size_t>(level)]; }

  std::array<Ring, verbs::kLevels> rings_;  // by level
};
static_assert((Outbox::kCapacity & (Outbox::kCapacity - 1)) == 0);

}  // namespace nzcl::engine
