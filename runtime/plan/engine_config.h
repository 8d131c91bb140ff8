// The configuration of one lane's engines, which never changes. Whatever shapes the messages is equal on all
// members.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "nzcl/options.h"
#include "runtime/plan/cost_model.h"
#include "runtime/plan/doubling_rounds.h"
#include "runtime/plan/exchange_cost.h"
#include "runtime/plan/link_speed.h"
#include "runtime/plan/members.h"
#include "runtime/plan/merging_steps.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"
#include "runtime/wire/seal.h"
#include "runtime/wire/tile.h"
#include "verbs/transport.h"

namespace nzcl::engine {

class Exchange;
struct LaneContext;

/// EngineConfig::direct_bytes of a member that writes no results in place.
inline constexpr std::uint64_t kNeverDirect = std::uint64_t{1} << 40;

/// The memory behind each slot and each staging buffer. A message's seal may lie there, so that it takes no
/// room of the message (runtime/wire/seal.h). It is a whole cache line, so that slots begin with one.
inline constexpr std::uint64_t kSlotTail = 64;
static_assert(kSlotTail >= wire::kSealBytes);

/// The channels of one priority.
struct ChannelConfig {
  std::uint64_t slot_bytes = 0;  // of a message, without its seal; a multiple of 64
  std::uint32_t slots = 0;       // of each channel, 1 .. 32768
  /// Members of one lending group do not copy messages into each other's rings. A message stays in the
  /// sender's staging buffer, and the receiver reads it there (verbs::Limits::readable).
  bool lent = false;

  /// The distance between the beginnings of two slots, or of two staging buffers.
  std::uint64_t stride() const { return slot_bytes + kSlotTail; }
};

/// What is known of the link from this member to another one.
struct LinkConfig {
  /// Where the member is. Its memory is asked for at this level, and writes to it are posted at it.
  verbs::Level level = verbs::Level::between;
  bool ordered = false;  // writes become visible in the order in which they were posted
  /// Runs of at least this size leave from the user's buffer; shorter ones are copied.
  std::uint64_t gather_bytes = 4096;
};

/// What an exchange in two levels is predicted from (HierarchyPlan). All members have the same.
struct HierarchyShape {
  int hosts = 1;              // 1: there is no such exchange
  int most_ranks = 1;         // of one host
  int columns = 1;            // ranks of each host that take part in the exchange between hosts
  LinkCosts within, between;  // of messages within a host, and of one rank that has its host's link alone
};

struct EngineConfig {
  Members members;
  int lane = 0;
  int lanes = 1;
  std::array<ChannelConfig, wire::kPriorities> channels;  // by wire::Priority
  std::vector<LinkConfig> links;                          // by member
  /// By member. Members whose numbers are equal and not negative can read each other's staging buffers.
  std::vector<int> lending_groups;
  /// How operations are exchanged whose request does not say. All members have the same.
  Algorithm algorithm = Algorithm::automatic;
  /// Values may be added in any order where no algorithm is asked for. All members have the same.
  bool any_order = false;
  /// The slowest link of any member. All members have the same. It does not count where no network link
  /// separates them.
  LinkSpeed link_speed;
  /// How dense inputs are taken to be if no request says it and the result is packed. All members have the
  /// same.
  double packed_density = 0.01;
  /// What an exchange costs, by which one is chosen. All members have the same.
  LinkCosts link_costs;
  HierarchyShape hierarchy;
  /// The number of ranks that share a core, where most do. All members have the same.
  double ranks_per_core = 1;
  /// Express operations take one hop: every rank sends its contribution to every other one, and each of them
  /// sums. This is possible only without dedicated aggregators.
  bool one_hop = false;
  std::size_t max_segments = 1;  // entries of a write's gather list, 1 .. verbs::kMaxSegments
  /// Results whose runs have at least this size on average are written in place.
  std::uint64_t direct_bytes = 16384;
  bool checksum = false;          // messages of this member carry the checksum of their bytes
  std::uint64_t slice_bytes = 0;  // dense bytes of a slice; 0: chosen from the tensor's size
  /// The most slices that this worker may have started with one owner and not seen complete, at most
  /// kWorkerWindow.
  std::uint64_t worker_window = kWorkerWindow;
  /// How many bytes of a worker's cache its incomplete slices may take, divided evenly between the owners.
  /// With 0, only `worker_window` bounds them.
  std::uint64_t ahead_bytes = 0;
  /// Tensors whose blocks have fewer bytes are exchanged as tiles. All members have the same. 0: none are.
  std::uint64_t tile_block_bytes = 0;
  /// How this member codes the index sets of its tiles. None: as is cheapest.
  std::optional<wire::IndexCode> index_code;
  /// Fewer bytes are worth more than the time it takes to find the shortest code of an index set.
  bool short_codes = false;
  Staging staging = Staging::automatic;
  /// Makes the exchanges of a communicator whose operations are all exchanged by a wing
  /// (runtime/exchange/wing.h). Empty: there is none.
  std::function<std::unique_ptr<Exchange>(LaneContext&)> make_exchange;
  /// By member: the NUMA node that its threads and its channels are on, or -1 if they are on several. All
  /// members have the same. Empty: nothing is known of any.
  std::vector<int> nodes;

  int node(int member) const { return nodes.empty() ? -1 : nodes[static_cast<std::size_t>(member)]; }
  const ChannelConfig& channel(wire::Priority priority) const {
    return channels[static_cast<std::size_t>(priority)];
  }
  /// Returns true if small operations can be exchanged by doubling, because there are channels for it.
  bool has_doubling() const { return channel(wire::Priority::doubling).slots > 0; }
  /// Returns true if partial sums can be merged, because there are channels for it.
  bool has_merging() const { return channel(wire::Priority::merging).slots > 0; }
  /// Returns true if operations can be summed in two levels: within hosts, and then between them.
  bool has_hierarchy() const { return hierarchy.hosts > 1; }
  const LinkConfig& link(int member) const { return links[static_cast<std::size_t>(member)]; }
  /// Returns true if messages between members `a` and `b` are lent.
  bool lends(wire::Priority priority, int a, int b) const {
    const auto group = [this](int member) { return lending_groups[static_cast<std::size_t>(member)]; };
    return channel(priority).lent && group(a) >= 0 && group(a) == group(b);
  }
  /// Sets the same kind of link for all members, and puts them all into one lending group.
  void set_links(const LinkConfig& all) {
    links.assign(static_cast<std::size_t>(members.count()), all);
    lending_groups.assign(static_cast<std::size_t>(members.count()), 0);
  }
  /// Returns true if members at different levels are reached in different ways.
  bool is_mixed() const {
    return std::any_of(links.begin(), links.end(),
                       [](const LinkConfig& link) { return link.level == verbs::Level::within; });
  }
  bool all_ordered() const {
    return std::all_of(links.begin(), links.end(), [](const LinkConfig& link) { return link.ordered; });
  }
  /// The most direct writes of one slice to one receiver, where each is announced by an immediate. A slice
  /// leaves the window only when its receiver has seen all of them. So for each priority, at most kWindow
  /// times as many are on their way from one member's lane to another's. Receivers check the number, so it
  /// must not depend on anything that members may have set differently.
  std::uint64_t announced_writes(wire::Priority priority) const {
    const std::uint64_t share =
        kWindow * kAnnouncedWrites.size() * static_cast<std::uint64_t>(members.count());
    return std::min(kAnnouncedWrites[static_cast<std::size_t>(priority)], kAnnouncedArrivals / share);
  }
  /// Entries of the gather list of a message without its seal, which may need one of its own.
  std::size_t message_segments() const { return std::max<std::size_t>(1, max_segments - 1); }
  std::uint32_t owners() const { return static_cast<std::uint32_t>(members.aggregators() * lanes); }
};

/// The most immediates that may be on their way to a lane's endpoint at any time. The endpoint must be opened
/// for as many.
inline std::uint64_t immediates_bound(const EngineConfig& config) {
  std::uint64_t per_peer = 0;
  for (const wire::Priority p : {wire::Priority::bulk, wire::Priority::express}) {
    per_peer += 2 * std::uint64_t{config.channel(p).slots} + 8;  // messages both ways, and a few credits
    const bool announced = !config.all_ordered() && !(config.one_hop && p == wire::Priority::express);
    if (announced) per_peer += kWindow * config.announced_writes(p);
  }
  const Members& members = config.members;
  const std::uint64_t of_partners =
      2 * (std::uint64_t{config.channel(wire::Priority::doubling).slots} *
               static_cast<std::uint64_t>(doubling_rounds(members.workers)) +
           std::uint64_t{config.channel(wire::Priority::merging).slots} *
               static_cast<std::uint64_t>(most_merging_partners(members.workers)));
  return per_peer * static_cast<std::uint64_t>(members.count()) + of_partners;
}

/// The least size of a slice of a small tensor. Where ranks share cores all messages count, so there are not
/// more of them than among few workers.
inline std::uint64_t least_slice_bytes(const EngineConfig& config) {
  if (config.members.workers <= kFewWorkers || config.ranks_per_core > 1) return kLeastSliceBytes;
  const auto workers = static_cast<std::uint64_t>(config.members.workers);
  return std::max(kLeastSliceBytes * kFewWorkers / workers, kLeastSliceBytesOfMany);
}

/// The most bytes that a tensor and its bitmap may have to travel as one express slice. They fill a slot
/// together with the fixed parts of a message. Among many workers, who all send theirs to one owner, they are
/// not larger than the least slice.
inline std::uint64_t express_bytes(const EngineConfig& config) {
  const std::uint64_t room = config.channel(wire::Priority::express).slot_bytes - wire::kMaxOverhead;
  return are_many(config.members) ? std::min(room, least_slice_bytes(config)) : room;
}

/// The most bytes that a tensor and its bitmap may have to be exchanged by doubling: the largest batch fits a
/// slot. 0 if there are no channels for it.
inline std::uint64_t doubling_bytes(const EngineConfig& config) {
  return config.has_doubling()
             ? doubling_bytes(config.members.workers, config.channel(wire::Priority::doubling).slot_bytes)
             : 0;
}

}  // namespace nzcl::engine
