#include "runtime/plan/engine_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/plan/algorithm.h"
#include "runtime/plan/cost_model.h"
#include "runtime/plan/doubling_rounds.h"
#include "runtime/plan/exchange_cost.h"
#include "runtime/plan/transport_choice.h"

namespace nzcl::engine {
namespace {

ChannelConfig plan_bulk(const Options& o, const Members& members, bool one_network,
                        const verbs::Limits& limits) {
  const std::uint64_t wanted = o.tune.slot_bytes ? o.tune.slot_bytes : bulk_slot_bytes(members, one_network);
  ChannelConfig bulk;
  // A message and its seal leave in one write.
  bulk.slot_bytes = std::min<std::uint64_t>(wanted, limits.max_write_bytes - kSlotTail) / 64 * 64;
  bulk.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots)
                                    : bulk_slots(members, one_network, bulk.slot_bytes);
  // An announcement has 16 bits for the number of a staging buffer. The sender has about as many buffers as
  // its channels to all members have slots.
  bulk.lent = limits.readable && (bulk.slots + 1) * static_cast<unsigned>(members.count() + 1) < 65536;
  return bulk;
}

ChannelConfig plan_express(const Options& o, std::uint64_t bulk_slot_bytes, bool one_hop) {
  ChannelConfig express;
  express.slot_bytes = std::min(bulk_slot_bytes, kExpressSlotBytes);
  express.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots) : kLeastSlots;
  // No results go the other way that could carry credits. Credits come in writes of their own, each for half
  // a ring, so the ring must be larger.
  if (one_hop) express.slots *= kOneHopSlots;
  return express;
}

/// Returns channels without slots where there can be no doubling.
ChannelConfig plan_doubling(const Options& o, std::uint64_t bulk_slot_bytes, const Members& members) {
  ChannelConfig doubling;
  doubling.slot_bytes = std::min(bulk_slot_bytes, kDoublingSlotBytes);
  const bool can = members.dedicated == 0 && doubling_bytes(members.workers, doubling.slot_bytes) > 0;
  if (can)
    doubling.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots) : kDoublingSlots;
  return doubling;
}

/// Returns channels without slots where nothing can be merged. Their slots are those of bulk messages,
/// because tiles are as large.
ChannelConfig plan_merging(const Options& o, ChannelConfig bulk, const Members& members) {
  if (members.dedicated > 0 || members.workers == 1) return {};
  bulk.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots) : kMergingSlots;
  return bulk;
}

/// Returns the code that the option forces, if it does.
std::optional<wire::IndexCode> index_code_of(IndexFormat format) {
  switch (format) {
    case IndexFormat::automatic:
      break;
    case IndexFormat::bitmap:
      return wire::IndexCode::bitmap;
    case IndexFormat::offsets:
      return wire::IndexCode::offsets;
    case IndexFormat::gaps:
      return wire::IndexCode::gaps;
    case IndexFormat::runs:
      return wire::IndexCode::runs;
    case IndexFormat::rice:
      return wire::IndexCode::rice;
  }
  return std::nullopt;
}

}  // namespace

EngineConfig plan_engine(const Options& o, const Membership& membership, const verbs::Limits& limits) {
  const Members& members = membership.members;
  const bool one_network = membership.networks.all_together();
  EngineConfig config;
  config.members = members;
  config.lanes = membership.lanes;
  check_algorithm(o.algorithm, members);
  config.algorithm = o.algorithm;
  config.any_order = o.sum_order == SumOrder::any;
  config.packed_density = o.tune.packed_density;
  config.link_speed = slowest_link(membership.links);
  config.link_costs = link_costs(transport_of(o, membership), one_network, config.link_speed.gbps);
  config.ranks_per_core = membership.members_per_core;
  config.one_hop =
      config.algorithm == Algorithm::automatic && members.dedicated == 0 && one_hop_pays(members.workers);
  const ChannelConfig bulk = plan_bulk(o, members, one_network, limits);
  config.channels[static_cast<std::size_t>(wire::Priority::bulk)] = bulk;
  config.channels[static_cast<std::size_t>(wire::Priority::express)] =
      plan_express(o, bulk.slot_bytes, config.one_hop);
  config.channels[static_cast<std::size_t>(wire::Priority::doubling)] =
      plan_doubling(o, bulk.slot_bytes, members);
  config.channels[static_cast<std::size_t>(wire::Priority::merging)] = plan_merging(o, bulk, members);
  // One device serves all links, so they are alike. Whether memory can be read is also a property of the
  // whole device.
  config.set_links({.ordered = limits.ordered,
                    .gather_bytes = o.tune.gather_bytes ? o.tune.gather_bytes : gather_from(limits.costs)});
  config.max_segments = std::min(limits.max_segments, verbs::kMaxSegments);
  if (o.tune.max_segments > 0)
    config.max_segments = std::min(config.max_segments, static_cast<std::size_t>(o.tune.max_segments));
  config.direct_bytes =
      o.tune.direct_bytes ? o.tune.direct_bytes : direct_from(limits.costs, members.workers);
  config.slice_bytes = o.tune.slice_bytes;
  config.ahead_bytes = ahead_bytes(one_network, membership.cache_bytes);
  // The pieces of the switch exchange hold whole blocks, or parts of one.
  config.tile_block_bytes = config.algorithm == Algorithm::switch_ ? 0 : kTileBlockBytes;
  config.short_codes = !one_network;
  config.index_code = index_code_of(o.tune.format);
  config.staging = o.tune.staging;
  config.nodes = membership.nodes;
  return config;
}

}  // namespace nzcl::engine
