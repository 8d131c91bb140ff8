#include "runtime/channel/lane_memory.h"

#include <fmt/format.h>

#include "nzcl/error.h"

#include "runtime/channel/staging_banks.h"
#include "runtime/placement/memory.h"

namespace nzcl::engine {
using wire::ChannelId;
using wire::Direction;
using wire::Priority;

namespace {

ReceiveChannel& receive_channel(LaneContext& context, const ChannelId& channel) {
  return context.channels(channel.priority, channel.member).receive(channel.direction);
}

}  // namespace

void LaneMemory::Release::operator()(std::byte* p) const { device->release({p, bytes}); }

LaneMemory::LaneMemory(const EngineConfig& config, verbs::Device& device) : layout_(config) {
  const std::size_t bytes = layout_.bytes(config.members.self);
  try {
    bytes_ = {device.allocate(bytes).data(), Release{&device, bytes}};
  } catch (const Error& e) {
    throw Error(
        e.code(),
        fmt::format(
            "no memory for the channels of {} members ({} MiB): {}; set slot_bytes or channel_slots lower",
            config.members.count(), bytes >> 20, e.what()));
  }
  place(config);
  region_ = device.register_memory({bytes_.get(), bytes}, MemoryKind::host);
}

/// Says which memory nodes the pages come from. Precondition: no page has been touched.
void LaneMemory::place(const EngineConfig& config) const {
  const int self = config.members.self;
  placement::prefer_node({bytes_.get(), bytes_.get_deleter().bytes}, config.node(self));
  for (const Priority p : wire::kAllPriorities) {
    std::byte* at = bytes_.get() + layout_.staging_offset(self, p);
    for (const StagingBank& bank : staging_banks(config, self, p)) {
      const std::uint64_t bytes = bank.buffers * config.channel(p).stride();
      if (bank.node != config.node(self)) placement::prefer_node({at, bytes}, bank.node);
      at += bytes;
    }
  }
}

void LaneMemory::attach(LaneContext& context) const {
  const EngineConfig& config = context.config;
  std::byte* base = bytes_.get();
  context.announcement_source = {base + LaneLayout::announcement_source(), 1, region_.get()};
  attach_credits(context);
  attach_sets(context);
  const int self = config.members.self;
  for (int member = 0; member < config.members.count(); ++member) {
    layout_.for_each_channel(self, member, [&](const ChannelId& channel) {
      const ChannelConfig& c = config.channel(channel.priority);
      if (config.lends(channel.priority, self, member)) return;  // attach_lender() makes these
      receive_channel(context, channel) =
          ReceiveChannel(base + layout_.ring_offset(self, channel), c.stride(), c.slots);
    });
  }
  for (const Priority p : wire::kAllPriorities) {
    std::vector<std::uint32_t> banks;
    for (const StagingBank& bank : staging_banks(config, self, p)) banks.push_back(bank.buffers);
    context.pool(p) =
        StagingPool(base + layout_.staging_offset(self, p), config.channel(p).stride(), banks, region_.get());
    context.staging_choices[static_cast<std::size_t>(p)] = staging_choice(config, p);
  }
}

/// Makes room for the channels with each member, in both directions.
void LaneMemory::attach_sets(LaneContext& context) const {
  const EngineConfig& config = context.config;
  const int self = config.members.self;
  for (const Priority p : wire::kAllPriorities) {
    context.channel_sets[static_cast<std::size_t>(p)].reset(
        static_cast<std::size_t>(config.members.count()), [&](std::size_t at) {
          const auto member = static_cast<int>(at);
          bool any = false;
          const auto look = [&](const ChannelId& channel) { any |= channel.priority == p; };
          layout_.for_each_channel(self, member, look);
          layout_.for_each_channel(member, self, look);
          return any;
        });
  }
}

/// Says where the credits of each channel lie in this memory.
void LaneMemory::attach_credits(LaneContext& context) const {
  CreditWords& words = context.credits;
  words.received = bytes_.get() + layout_.credits_received(0);
  words.given = bytes_.get() + layout_.credits_given(0);
  words.of_member = layout_.credits_received(1) - layout_.credits_received(0);
  layout_.for_each_credit([&](Direction d, Priority p, std::uint64_t at) { words.offset(d, p) = at; });
  words.sinks.resize(static_cast<std::size_t>(context.config.members.count()));
  words.region = region_.get();
}

void LaneMemory::attach_peer(LaneContext& context, int member, verbs::RemoteMemory memory) const {
  const EngineConfig& config = context.config;
  const std::uint16_t self = context.self();
  context.credits.sinks[static_cast<std::size_t>(member)] = memory.offset(layout_.credits_received(self));
  layout_.for_each_channel(member, self, [&](const ChannelId& mine) {
    const ChannelConfig& c = config.channel(mine.priority);
    context.channels(mine.priority, static_cast<std::uint16_t>(member)).send(mine.direction) =
        config.lends(mine.priority, self, member)
            ? SendChannel::lending(memory.offset(LaneLayout::announcement_sink(self)), c.slots)
            : SendChannel(memory.offset(layout_.ring_offset(member, mine)), c.stride(), c.slots);
  });
}

void LaneMemory::attach_lender(LaneContext& context, int member, const std::byte* base) const {
  const EngineConfig& config = context.config;
  const int self = config.members.self;
  layout_.for_each_channel(self, member, [&](const ChannelId& channel) {
    const Priority p = channel.priority;
    if (!config.lends(p, self, member)) return;
    receive_channel(context, channel) =
        ReceiveChannel::borrowing(base + layout_.staging_offset(member, p), config.channel(p).stride(),
                                  config.channel(p).slots, layout_.staging_buffers(member, p));
  });
}

}  // namespace nzcl::engine
