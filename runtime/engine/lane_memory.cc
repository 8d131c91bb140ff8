#include "runtime/engine/lane_memory.h"

#include <fmt/format.h>

#include "nzcl/error.h"

#include "runtime/placement/memory.h"

namespace nzcl::engine {
namespace {

using wire::ChannelId;
using wire::Class;
using wire::Direction;

// A cache line each: the byte that credit writes come from, and for each member the byte that its land on.
// (In one line for all of them, every write took it from another core.)
constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kCreditSource = 0;
std::uint64_t credit_sink(int member) { return kLine * (1 + static_cast<std::uint64_t>(member)); }
std::uint64_t rings(const Members& members) { return credit_sink(members.count()); }

bool exists(const Members& members, int receiver, const ChannelId& from) {
  if (from.member == receiver) return false;
  return from.direction == Direction::up ? members.is_worker(from.member) && members.is_aggregator(receiver)
                                         : members.is_aggregator(from.member) && members.is_worker(receiver);
}

/// Calls visit(channel, offset) for every ring of `receiver`; returns where they end.
template <typename Visit>
std::uint64_t for_each_ring(const EngineConfig& config, int receiver, Visit visit) {
  std::uint64_t offset = rings(config.members);
  for (int member = 0; member < config.members.count(); ++member) {
    for (const Direction direction : {Direction::up, Direction::down}) {
      for (const Class c : {Class::bulk, Class::express}) {
        const ChannelId channel{static_cast<std::uint16_t>(member), direction, c};
        if (!exists(config.members, receiver, channel)) continue;
        visit(channel, offset);
        if (!config.of(c).lent) offset += config.of(c).slot_bytes * config.of(c).slots;
      }
    }
  }
  return offset;
}

ReceiveChannel& receive_channel(LaneContext& context, const ChannelId& channel) {
  Link& link = context.link(channel.size_class, channel.member);
  return channel.direction == Direction::up ? link.receive_up : link.receive_down;
}

}  // namespace

std::uint64_t ring_offset(const EngineConfig& config, int receiver, const ChannelId& from) {
  std::uint64_t found = 0;
  for_each_ring(config, receiver, [&](const ChannelId& channel, std::uint64_t offset) {
    if (channel == from) found = offset;
  });
  return found;
}

std::uint32_t staging_buffers(const EngineConfig& config, int member, Class c) {
  const ClassConfig& of = config.of(c);
  const Members& members = config.members;
  const bool aggregates = members.is_aggregator(member);
  if (!of.lent) return kStagingBuffers + (aggregates ? kWaitingResults : 0);
  const int to = members.is_worker(member) ? members.aggregators() - (aggregates ? 1 : 0) : 0;
  return static_cast<std::uint32_t>(to) * of.slots + (aggregates ? of.slots : 0) + kStagingBuffers;
}

std::uint64_t staging_offset(const EngineConfig& config, int member, Class c) {
  std::uint64_t offset = for_each_ring(config, member, [](const ChannelId&, std::uint64_t) {});
  if (c == Class::express)
    offset += config.of(Class::bulk).slot_bytes * staging_buffers(config, member, Class::bulk);
  return offset;
}

std::uint64_t lane_memory_bytes(const EngineConfig& config, int member) {
  return staging_offset(config, member, Class::express) +
         config.of(Class::express).slot_bytes * staging_buffers(config, member, Class::express);
}

void LaneMemory::Release::operator()(std::byte* p) const { device->release({p, bytes}); }

LaneMemory::LaneMemory(const EngineConfig& config, verbs::Device& device) {
  const std::size_t bytes = lane_memory_bytes(config, config.members.self);
  try {
    bytes_ = {device.allocate(bytes).data(), Release{&device, bytes}};
  } catch (const Error& e) {
    throw Error(
        e.code(),
        fmt::format(
            "no memory for the channels of {} members ({} MiB): {}; set slot_bytes or channel_slots lower",
            config.members.count(), bytes >> 20, e.what()));
  }
  placement::prefer_node({bytes_.get(), bytes}, config.numa_node);  // before registering touches it
  region_ = device.register_memory({bytes_.get(), bytes}, MemoryKind::host);
}

void LaneMemory::attach(LaneContext& context) const {
  const EngineConfig& config = context.config;
  std::byte* base = bytes_.get();
  context.credit_source = {base + kCreditSource, 1, region_.get()};
  context.credit_sinks.resize(static_cast<std::size_t>(config.members.count()));
  for (auto& links : context.links) links.resize(static_cast<std::size_t>(config.members.count()));
  const int self = config.members.self;
  for_each_ring(config, self, [&](const ChannelId& channel, std::uint64_t at) {
    const ClassConfig& c = config.of(channel.size_class);
    if (!c.lent) receive_channel(context, channel) = ReceiveChannel(base + at, c.slot_bytes, c.slots);
  });
  for (const Class c : {Class::bulk, Class::express}) {
    context.pool(c) = StagingPool(base + staging_offset(config, self, c), config.of(c).slot_bytes,
                                  staging_buffers(config, self, c), region_.get());
  }
}

void LaneMemory::attach_peer(LaneContext& context, int member, verbs::RemoteMemory memory) {
  const EngineConfig& config = context.config;
  const std::uint16_t self = context.self();
  context.credit_sinks[static_cast<std::size_t>(member)] = memory.offset(credit_sink(self));
  for (const Direction direction : {Direction::up, Direction::down}) {
    for (const Class c : {Class::bulk, Class::express}) {
      const ChannelId mine{self, direction, c};
      if (!exists(config.members, member, mine)) continue;
      Link& link = context.link(c, static_cast<std::uint16_t>(member));
      const ClassConfig& of = config.of(c);
      (direction == Direction::up ? link.send_up : link.send_down) =
          of.lent ? SendChannel::lending(memory.offset(credit_sink(self)), of.slots)
                  : SendChannel(memory.offset(ring_offset(config, member, mine)), of.slot_bytes, of.slots);
    }
  }
}

void LaneMemory::attach_lender(LaneContext& context, int member, const std::byte* base) {
  const EngineConfig& config = context.config;
  for_each_ring(config, config.members.self, [&](const ChannelId& channel, std::uint64_t) {
    const Class c = channel.size_class;
    if (channel.member != member || !config.of(c).lent) return;
    receive_channel(context, channel) =
        ReceiveChannel::borrowing(base + staging_offset(config, member, c), config.of(c).slot_bytes,
                                  config.of(c).slots, staging_buffers(config, member, c));
  });
}

}  // namespace nzcl::engine
