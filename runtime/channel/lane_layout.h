// Where everything lies in the lane memory of each member. Every member computes the same, so members tell
// each other only where this memory starts and its key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "runtime/plan/engine_config.h"
#include "runtime/wire/immediate.h"

namespace nzcl::engine {

/// A member asks for the layout of every other one, so no answer may take a walk over all members: they are
/// looked at once, when the layout is made, and once more for each kind of member (its host, node and role)
/// whose staging buffers are asked for. Not thread-safe.
class LaneLayout {
 public:
  /// The configuration must outlive it.
  explicit LaneLayout(const EngineConfig& config);

  /// Returns true if `receiver` has this channel. There is none at a priority whose channels have no slots.
  bool exists(int receiver, const wire::ChannelId& from) const;
  /// Offset of the ring for channel `from` (member, direction, priority) in the lane memory of `receiver`.
  std::uint64_t ring_offset(int receiver, const wire::ChannelId& from) const;
  /// Offset of the staging buffers of one priority in the lane memory of `member`, and the size of all of it.
  std::uint64_t staging_offset(int member, wire::Priority p) const;
  std::uint64_t bytes(int member) const;
  /// The number of staging buffers of `member` at one priority.
  std::uint32_t staging_buffers(int member, wire::Priority p) const;

  /// The byte that announcements of lent messages come from, and the one that those of `member` land on.
  static std::uint64_t announcement_source() { return 0; }
  static std::uint64_t announcement_sink(int member);
  /// Offsets of the credit words that come back from `member`, and of those that are given back to it. The
  /// second are the sources of the writes that make the first.
  std::uint64_t credits_received(int member) const;
  std::uint64_t credits_given(int member) const;
  /// Calls visit(direction, priority, offset) for the credit words of each channel, which begin at this
  /// offset among those of a member.
  template <typename Visit>
  void for_each_credit(Visit visit) const {
    std::uint64_t offset = 0;
    for (const wire::Direction direction : {wire::Direction::up, wire::Direction::down}) {
      for (const wire::Priority p : wire::kAllPriorities) {
        visit(direction, p, offset);
        offset += credit_bytes(direction, p);
      }
    }
  }
  /// Calls visit(channel) for every channel from `member` to `receiver`, in the order of their rings.
  template <typename Visit>
  void for_each_channel(int receiver, int member, Visit visit) const {
    for (const wire::Direction direction : {wire::Direction::up, wire::Direction::down}) {
      for (const wire::Priority p : wire::kAllPriorities) {
        const wire::ChannelId channel{static_cast<std::uint16_t>(member), direction, p};
        if (exists(receiver, channel)) visit(channel);
      }
    }
  }

  // For tests: how many members were looked at until now.
  std::uint64_t looked_at() const { return looked_at_; }

 private:
  std::uint64_t credit_bytes(wire::Direction direction, wire::Priority p) const;
  std::uint64_t ring_bytes(int receiver, const wire::ChannelId& from) const;
  std::uint64_t rings_before(int receiver, int member) const;
  std::uint64_t ringed(wire::Priority p, int receiver, int begin, int end) const;
  std::uint64_t ringed_partners(wire::Priority p, int receiver, int end) const;

  const EngineConfig& config_;
  std::uint64_t credits_of_member_ = 0;
  std::unordered_map<int, std::vector<int>> groups_;  // of lending members, by number
  /// By priority, lending group, node and role: what staging_buffers() has found. Members that agree in these
  /// have as many.
  mutable std::map<std::tuple<wire::Priority, int, int, bool>, std::uint32_t> buffers_;
  mutable std::uint64_t looked_at_ = 0;
};

}  // namespace nzcl::engine
