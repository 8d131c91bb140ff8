#include "runtime/channel/lane_memory.h"

#include <fmt/format.h>

#include "nzcl/error.h"

#include "runtime/placement/memory.h"
#include "runtime/plan/merging_steps.h"

namespace nzcl::engine {
namespace {

using wire::ChannelId;
using wire::Direction;
using wire::Priority;

// The byte that announcements of lent messages come from has a cache line of its own, and so has each byte
// that a member's announcements land on. If they shared a line, every write would take it away from another
// core. The same holds for the words of credits.
constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kAnnouncementSource = 0;
std::uint64_t announcement_sink(int member) { return kLine * (1 + static_cast<std::uint64_t>(member)); }

/// Bytes of the credit words of one channel: one word for each slot.
std::uint64_t credit_bytes(const EngineConfig& config, Direction direction, Priority p) {
  if (direction == Direction::down && between_ranks(p)) return 0;
  return (config.channel(p).slots * sizeof(std::uint64_t) + kLine - 1) / kLine * kLine;
}

/// Offset of the credit words of a channel, among those of its member; their total size for the channel that
/// does not exist behind the last one.
template <typename Visit>
std::uint64_t for_each_credit(const EngineConfig& config, Visit visit) {
  std::uint64_t offset = 0;
  for (const Direction direction : {Direction::up, Direction::down}) {
    for (const Priority p : wire::kAllPriorities) {
      visit(direction, p, offset);
      offset += credit_bytes(config, direction, p);
    }
  }
  return offset;
}

std::uint64_t credits_of_member(const EngineConfig& config) {
  return for_each_credit(config, [](Direction, Priority, std::uint64_t) {});
}

/// Offset of the credits that come back from the members, and of those that this member gives back to them.
/// The second are the sources of the writes that make the first.
std::uint64_t credits_received(const EngineConfig& config, int member) {
  return announcement_sink(config.members.count()) +
         static_cast<std::uint64_t>(member) * credits_of_member(config);
}
std::uint64_t credits_given(const EngineConfig& config, int member) {
  return credits_received(config, config.members.count()) +
         static_cast<std::uint64_t>(member) * credits_of_member(config);
}
std::uint64_t rings(const EngineConfig& config) { return credits_given(config, config.members.count()); }

/// Returns true if one of the rounds of doubling goes from `sender` to `receiver`.
bool doubles(const EngineConfig& config, int sender, int receiver) {
  const int ranks = config.members.workers;
  return config.has_doubling() && round_of_distance(ranks, (receiver - sender + ranks) % ranks) >= 0;
}

/// Returns true if the two send each other partial sums.
bool merges(const EngineConfig& config, int a, int b) {
  return config.has_merging() && MergingPlan(config.members.workers).meet(a, b);
}

bool exists(const EngineConfig& config, int receiver, const ChannelId& from) {
  const Members& members = config.members;
  if (from.member == receiver) return false;
  if (from.priority == Priority::doubling)
    return from.direction == Direction::up && doubles(config, from.member, receiver);
  if (from.priority == Priority::merging)
    return from.direction == Direction::up && merges(config, from.member, receiver);
  return from.direction == Direction::up ? members.is_worker(from.member) && members.is_aggregator(receiver)
                                         : members.is_aggregator(from.member) && members.is_worker(receiver);
}

/// Calls visit(channel, offset) for every channel to `receiver`, whether its messages lie in a ring or are
/// lent. Returns the offset at which the rings end.
template <typename Visit>
std::uint64_t for_each_channel(const EngineConfig& config, int receiver, Visit visit) {
  std::uint64_t offset = rings(config);
  for (int member = 0; member < config.members.count(); ++member) {
    for (const Direction direction : {Direction::up, Direction::down}) {
      for (const Priority p : wire::kAllPriorities) {
        const ChannelId channel{static_cast<std::uint16_t>(member), direction, p};
        if (!exists(config, receiver, channel)) continue;
        visit(channel, offset);
        if (config.lends(p, receiver, member)) continue;  // no ring: the sender keeps the messages
        offset += config.channel(p).stride() * config.channel(p).slots;
      }
    }
  }
  return offset;
}

ReceiveChannel& receive_channel(LaneContext& context, const ChannelId& channel) {
  return context.channels(channel.priority, channel.member).receive(channel.direction);
}

}  // namespace

std::uint64_t ring_offset(const EngineConfig& config, int receiver, const ChannelId& from) {
  std::uint64_t found = 0;
  for_each_channel(config, receiver, [&](const ChannelId& channel, std::uint64_t offset) {
    if (channel == from) found = offset;
  });
  return found;
}

std::uint64_t staging_offset(const EngineConfig& config, int member, Priority p) {
  std::uint64_t offset = for_each_channel(config, member, [](const ChannelId&, std::uint64_t) {});
  for (const Priority before : wire::kAllPriorities) {
    if (before == p) break;
    offset += config.channel(before).stride() * staging_buffers(config, member, before);
  }
  return offset;
}

std::uint64_t lane_memory_bytes(const EngineConfig& config, int member) {
  constexpr Priority kLast = wire::kAllPriorities[wire::kPriorities - 1];
  return staging_offset(config, member, kLast) +
         config.channel(kLast).stride() * staging_buffers(config, member, kLast);
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
  place(config);
  region_ = device.register_memory({bytes_.get(), bytes}, MemoryKind::host);
}

/// Says which memory nodes the pages come from. Precondition: no page has been touched.
void LaneMemory::place(const EngineConfig& config) const {
  const int self = config.members.self;
  placement::prefer_node({bytes_.get(), bytes_.get_deleter().bytes}, config.node(self));
  for (const Priority p : wire::kAllPriorities) {
    std::byte* at = bytes_.get() + staging_offset(config, self, p);
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
  context.announcement_source = {base + kAnnouncementSource, 1, region_.get()};
  attach_credits(context);
  for (auto& sets : context.channel_sets) sets.resize(static_cast<std::size_t>(config.members.count()));
  const int self = config.members.self;
  for_each_channel(config, self, [&](const ChannelId& channel, std::uint64_t at) {
    const ChannelConfig& c = config.channel(channel.priority);
    if (config.lends(channel.priority, self, channel.member)) return;  // attach_lender() makes these
    receive_channel(context, channel) = ReceiveChannel(base + at, c.stride(), c.slots);
  });
  for (const Priority p : wire::kAllPriorities) {
    std::vector<std::uint32_t> banks;
    for (const StagingBank& bank : staging_banks(config, self, p)) banks.push_back(bank.buffers);
    context.pool(p) =
        StagingPool(base + staging_offset(config, self, p), config.channel(p).stride(), banks, region_.get());
    context.staging_choices[static_cast<std::size_t>(p)] = staging_choice(config, p);
  }
}

/// Says where the credits of each channel lie in this memory.
void LaneMemory::attach_credits(LaneContext& context) const {
  const EngineConfig& config = context.config;
  context.credits.resize(static_cast<std::size_t>(config.members.count()));
  for (int member = 0; member < config.members.count(); ++member) {
    CreditWords& words = context.credits[static_cast<std::size_t>(member)];
    for_each_credit(config, [&](Direction d, Priority p, std::uint64_t at) {
      words.of(d, p).received = bytes_.get() + credits_received(config, member) + at;
      words.of(d, p).given = bytes_.get() + credits_given(config, member) + at;
    });
    words.region = region_.get();
  }
}

void LaneMemory::attach_peer(LaneContext& context, int member, verbs::RemoteMemory memory) {
  const EngineConfig& config = context.config;
  const std::uint16_t self = context.self();
  for_each_credit(config, [&](Direction d, Priority p, std::uint64_t at) {
    context.credits[static_cast<std::size_t>(member)].of(d, p).sink =
        memory.offset(credits_received(config, self) + at);
  });
  for (const Direction direction : {Direction::up, Direction::down}) {
    for (const Priority p : wire::kAllPriorities) {
      const ChannelId mine{self, direction, p};
      if (!exists(config, member, mine)) continue;
      const ChannelConfig& c = config.channel(p);
      context.channels(p, static_cast<std::uint16_t>(member)).send(direction) =
          config.lends(p, self, member)
              ? SendChannel::lending(memory.offset(announcement_sink(self)), c.slots)
              : SendChannel(memory.offset(ring_offset(config, member, mine)), c.stride(), c.slots);
    }
  }
}

void LaneMemory::attach_lender(LaneContext& context, int member, const std::byte* base) {
  const EngineConfig& config = context.config;
  const int self = config.members.self;
  for_each_channel(config, self, [&](const ChannelId& channel, std::uint64_t) {
    const Priority p = channel.priority;
    if (channel.member != member || !config.lends(p, self, member)) return;
    receive_channel(context, channel) =
        ReceiveChannel::borrowing(base + staging_offset(config, member, p), config.channel(p).stride(),
                                  config.channel(p).slots, staging_buffers(config, member, p));
  });
}

}  // namespace nzcl::engine
