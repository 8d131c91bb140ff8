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
#include "runtime/plan/hierarchy.h"
#include "runtime/plan/transport_choice.h"
#include "verbs/mixed/pair.h"

namespace nzcl::engine {
namespace {

/// What messages must suit, and which members read each other's memory. Where members at two levels are
/// reached in different ways, all messages must suit both, because they have one form for all receivers.
struct Forms {
  Forms(const Membership& m, const DeviceLimits& limits)
      : is_mixed(limits.is_mixed && !m.hosts.none_together() && !m.hosts.all_together()),
        is_within(limits.is_mixed && m.hosts.all_together()),
        message(is_mixed    ? limits.both
                : is_within ? limits.within
                            : limits.between),
        lending(is_mixed ? limits.within : message),
        lenders(is_mixed ? m.hosts.most_together() : m.members.count()) {}

  const bool is_mixed, is_within;
  const verbs::Limits& message;
  const verbs::Limits& lending;  // of members that may read each other's memory
  const int lenders;             // the most members that may do so, and that share a host if links differ
};

LinkConfig link_config(const Options& o, const verbs::Limits& limits, verbs::Level level) {
  return {.level = level,
          .ordered = limits.ordered,
          .gather_bytes = o.tune.gather_bytes ? o.tune.gather_bytes : gather_from(limits.costs)};
}

/// Sets what is known of the links to the members, and who reads whose memory.
void plan_links(const Options& o, const Membership& m, const DeviceLimits& limits, const Forms& forms,
                EngineConfig& config) {
  using verbs::Level;
  if (!forms.is_mixed) {
    config.set_links(link_config(o, forms.message, forms.is_within ? Level::within : Level::between));
    return;
  }
  config.set_links({});
  config.lending_groups = m.hosts.numbers();
  for (int member = 0; member < m.members.count(); ++member) {
    const bool here = m.hosts.together(m.members.self, member);
    config.links[static_cast<std::size_t>(member)] =
        here ? link_config(o, limits.within, Level::within) : link_config(o, limits.between, Level::between);
  }
}

/// EngineConfig::direct_bytes, from what writing to each of the other ranks costs.
std::uint64_t plan_direct(const Membership& m, const DeviceLimits& limits, const Forms& forms) {
  const int others = m.members.workers - 1;
  if (!forms.is_mixed) return direct_from(forms.message.costs, m.members.workers);
  int within = 0;
  for (int rank = 0; rank < m.members.workers; ++rank)
    within += rank != m.members.self && m.hosts.together(m.members.self, rank) ? 1 : 0;
  within = std::min(within, others);
  return direct_from(limits.between.costs, others - within, limits.within.costs, within);
}

/// The largest slot whose message and seal leave in one write, and that is not larger than `wanted`.
std::uint64_t within_a_write(std::uint64_t wanted, const Forms& forms) {
  return std::min<std::uint64_t>(wanted, forms.message.max_write_bytes - kSlotTail) / 64 * 64;
}

ChannelConfig plan_bulk(const Options& o, const Members& members, bool one_network, const Forms& forms) {
  const std::uint64_t wanted = o.tune.slot_bytes ? o.tune.slot_bytes : bulk_slot_bytes(members, one_network);
  ChannelConfig bulk;
  bulk.slot_bytes = within_a_write(wanted, forms);
  bulk.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots)
                                    : bulk_slots(members, one_network, bulk.slot_bytes);
  // An announcement has 16 bits for the number of a staging buffer. The sender has about as many buffers as
  // its channels to all members that it lends to have slots.
  bulk.lent = forms.lending.readable && (bulk.slots + 1) * static_cast<unsigned>(forms.lenders + 1) < 65536;
  return bulk;
}

ChannelConfig plan_express(const Options& o, const Members& members, std::uint64_t bulk_slot_bytes,
                           bool one_hop) {
  ChannelConfig express;
  express.slot_bytes = std::min(bulk_slot_bytes, express_slot_bytes(members));
  express.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots)
                                       : express_slots(members, express.slot_bytes);
  // No results go the other way that could carry credits. Credits come in writes of their own, each for half
  // a ring, so the ring must be larger.
  if (one_hop) express.slots *= kOneHopSlots;
  return express;
}

/// Among many members slots of bulk messages are small. Doubling and merging have log2 as many partners, so
/// theirs need not be.
bool has_large_slots_of_few_partners(const Options& o, const Members& members) {
  return are_many(members) && o.tune.slot_bytes == 0;
}

/// Returns channels without slots where there can be no doubling.
ChannelConfig plan_doubling(const Options& o, std::uint64_t bulk_slot_bytes, const Members& members,
                            const Forms& forms) {
  const bool many = has_large_slots_of_few_partners(o, members);
  ChannelConfig doubling;
  doubling.slot_bytes = many ? within_a_write(doubling_slot_bytes_of_many(members.workers), forms)
                             : std::min(bulk_slot_bytes, kDoublingSlotBytes);
  const bool can = members.dedicated == 0 && doubling_bytes(members.workers, doubling.slot_bytes) > 0;
  if (can)
    doubling.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots)
                                          : (many ? kDoublingSlotsOfMany : kDoublingSlots);
  return doubling;
}

/// Returns channels without slots where nothing can be merged. Their slots are those of bulk messages,
/// because tiles are as large; but among many they are larger.
ChannelConfig plan_merging(const Options& o, ChannelConfig bulk, const Members& members, const Forms& forms) {
  if (members.dedicated > 0 || members.workers == 1) return {};
  const bool many = has_large_slots_of_few_partners(o, members);
  if (many) bulk.slot_bytes = within_a_write(kMergingSlotBytesOfMany, forms);
  bulk.slots = o.tune.channel_slots ? static_cast<std::uint32_t>(o.tune.channel_slots)
                                    : (many ? kMergingSlotsOfMany : kMergingSlots);
  return bulk;
}

/// Returns how many ranks' worth of traffic a host's link carries: the ranks of a host share it, but what
/// they send to each other does not take it.
double sharers_of_link(const Membership& m) {
  const int ranks = m.members.workers, here = m.hosts.most_together();
  if (ranks == 1 || here <= 1) return 1;
  return static_cast<double>(here) * (ranks - here) / (ranks - 1);
}

HierarchyShape plan_hierarchy(const Options& o, const Membership& m, const LinkCosts& alone, double gbps) {
  const auto plan = HierarchyPlan::of(m, o.tune.host_ranks);
  if (!plan) return {};
  const auto pair = verbs::TransportPair::of(transport_of(o, m));
  const LinkCosts within =
      pair ? link_costs("cma", true, gbps) : link_costs(verbs::between_hosts(transport_of(o, m)), true, gbps);
  return {.hosts = plan->hosts(),
          .most_ranks = plan->most_ranks(),
          .columns = plan->columns(),
          .within = within,
          .between = alone};
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

EngineConfig plan_engine(const Options& o, const Membership& membership, const DeviceLimits& limits) {
  const Members& members = membership.members;
  const bool one_network = membership.networks.all_together();
  const Forms forms(membership, limits);
  EngineConfig config;
  config.members = members;
  config.lanes = membership.lanes;
  check_algorithm(o.algorithm, members);
  config.algorithm = o.algorithm;
  config.any_order = o.sum_order == SumOrder::any;
  config.packed_density = o.tune.packed_density;
  config.link_speed = slowest_link(membership.links);
  config.link_costs =
      link_costs(verbs::between_hosts(transport_of(o, membership)), one_network, config.link_speed.gbps);
  config.hierarchy = plan_hierarchy(o, membership, config.link_costs, config.link_speed.gbps);
  config.link_costs.wire_byte *= sharers_of_link(membership);
  config.ranks_per_core = membership.members_per_core;
  config.one_hop =
      config.algorithm == Algorithm::automatic && members.dedicated == 0 && one_hop_pays(members.workers);
  const ChannelConfig bulk = plan_bulk(o, members, one_network, forms);
  config.channels[static_cast<std::size_t>(wire::Priority::bulk)] = bulk;
  config.channels[static_cast<std::size_t>(wire::Priority::express)] =
      plan_express(o, members, bulk.slot_bytes, config.one_hop);
  config.channels[static_cast<std::size_t>(wire::Priority::doubling)] =
      plan_doubling(o, bulk.slot_bytes, members, forms);
  config.channels[static_cast<std::size_t>(wire::Priority::merging)] = plan_merging(o, bulk, members, forms);
  plan_links(o, membership, limits, forms, config);
  config.max_segments = std::min(forms.message.max_segments, verbs::kMaxSegments);
  if (o.tune.max_segments > 0)
    config.max_segments = std::min(config.max_segments, static_cast<std::size_t>(o.tune.max_segments));
  config.direct_bytes = o.tune.direct_bytes ? o.tune.direct_bytes : plan_direct(membership, limits, forms);
  config.checksum = o.checksum != 0;
  if (config.checksum) config.direct_bytes = kNeverDirect;  // what is written in place has no checksum
  config.slice_bytes = o.tune.slice_bytes;
  // A worker has a window for each owner, of whom there are few if they are dedicated.
  const bool many_owners = are_many({.workers = members.aggregators()});
  config.worker_window = many_owners ? kWorkerWindowOfMany : kWorkerWindow;
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
