// What the engines of one lane are told once, and never changes. Whatever shapes the wire is equal on all
// members.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/plan/members.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"

namespace nzcl::engine {

/// The channels of one priority.
struct ChannelConfig {
  std::uint64_t slot_bytes = 0;  // a multiple of 64
  std::uint32_t slots = 0;       // of each channel, 1 .. 32768
  /// Members of one lending group do not copy messages into each other's rings: a message stays in the
  /// sender's staging buffer and is read there (verbs::Limits::readable).
  bool lent = false;
};

/// What is known of the way from this member to another one.
struct LinkConfig {
  bool ordered = false;  // writes become visible in the order in which they were posted
  std::uint64_t gather_bytes =
      4096;  // runs from this size on leave from the user's buffer, shorter ones are copied
};

struct EngineConfig {
  Members members;
  int lane = 0;
  int lanes = 1;
  std::array<ChannelConfig, wire::kPriorities> channels;  // by wire::Priority
  std::vector<LinkConfig> links;                          // by member
  /// By member: members whose numbers are equal and not negative can read each other's staging buffers.
  std::vector<int> lending_groups;
  /// Express operations take one hop: every rank sends its contribution to every other one, and all of them
  /// sum. Only without dedicated aggregators.
  bool one_hop = false;
  std::size_t max_segments = 1;        // entries of a gather list, 1 .. verbs::kMaxSegments
  std::uint64_t direct_bytes = 16384;  // results whose runs have this size on average are written in place
  std::uint64_t slice_bytes = 0;       // dense bytes of a slice; 0: chosen from the tensor's size
  /// What a worker's incomplete slices may take of its cache, divided evenly between the owners. 0: no bound
  /// but kWindow.
  std::uint64_t ahead_bytes = 0;
  int numa_node = -1;  // of channels and staging buffers; -1: anywhere

  const ChannelConfig& channel(wire::Priority priority) const {
    return channels[static_cast<std::size_t>(priority)];
  }
  const LinkConfig& link(int member) const { return links[static_cast<std::size_t>(member)]; }
  /// Whether messages between two members are lent.
  bool lends(wire::Priority priority, int a, int b) const {
    const auto group = [this](int member) { return lending_groups[static_cast<std::size_t>(member)]; };
    return channel(priority).lent && group(a) >= 0 && group(a) == group(b);
  }
  /// The same for all members: one kind of link, and one lending group.
  void set_links(const LinkConfig& all) {
    links.assign(static_cast<std::size_t>(members.count()), all);
    lending_groups.assign(static_cast<std::size_t>(members.count()), 0);
  }
  bool all_ordered() const {
    return std::all_of(links.begin(), links.end(), [](const LinkConfig& link) { return link.ordered; });
  }
  /// Direct writes of one slice to one receiver, at most, where each is announced by an immediate. Invariant:
  /// kWindow times as many of each priority may be on their way from one member's lane to another's, as a
  /// slice leaves the window only when its receiver has seen them all. Receivers check it, so it depends on
  /// nothing that members may have set differently.
  std::uint64_t announced_writes(wire::Priority priority) const {
    const std::uint64_t share = kWindow * wire::kPriorities * static_cast<std::uint64_t>(members.count());
    return std::min(kAnnouncedWrites[static_cast<std::size_t>(priority)], kAnnouncedArrivals / share);
  }
  std::uint32_t owners() const { return static_cast<std::uint32_t>(members.aggregators() * lanes); }
};

/// Immediates that may be on their way to a lane's endpoint at any time: what it has to be opened for.
inline std::uint64_t immediates_bound(const EngineConfig& config) {
  std::uint64_t per_peer = 0;
  for (const wire::Priority p : {wire::Priority::bulk, wire::Priority::express}) {
    per_peer += 2 * std::uint64_t{config.channel(p).slots} + 8;  // messages both ways; a few credits
    const bool announced = !config.all_ordered() && !(config.one_hop && p == wire::Priority::express);
    if (announced) per_peer += kWindow * config.announced_writes(p);
  }
  return per_peer * static_cast<std::uint64_t>(config.members.count());
}

/// The largest tensor that travels as one express slice: with its bitmap and a message's fixed parts it fills
/// a slot.
inline std::uint64_t express_bytes(const EngineConfig& config) {
  return config.channel(wire::Priority::express).slot_bytes - wire::kMaxOverhead;
}

}  // namespace nzcl::engine
