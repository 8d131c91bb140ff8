#include "runtime/channel/lane_layout.h"

#include <algorithm>

#include "runtime/channel/staging_banks.h"
#include "runtime/plan/doubling_rounds.h"
#include "runtime/plan/merging_steps.h"

namespace nzcl::engine {

using wire::ChannelId;
using wire::Direction;
using wire::Priority;

namespace {

// The byte that announcements of lent messages come from has a cache line of its own, and so has each byte
// that a member's announcements land on. If they shared a line, every write would take it away from another
// core. The same holds for the words of credits.
constexpr std::uint64_t kLine = 64;

/// Returns true if one of the rounds of doubling goes from `sender` to `receiver`.
bool doubles(const EngineConfig& config, int sender, int receiver) {
  const int ranks = config.members.workers;
  return config.has_doubling() && round_of_distance(ranks, (receiver - sender + ranks) % ranks) >= 0;
}

/// Returns true if the two send each other partial sums.
bool merges(const EngineConfig& config, int a, int b) {
  return config.has_merging() && MergingPlan(config.members.workers).meet(a, b);
}

/// The ranks that send to `rank` by doubling.
std::vector<int> senders_by_doubling(const EngineConfig& config, int rank) {
  std::vector<int> all;
  const int ranks = config.members.workers;
  for (int round = 0; config.has_doubling() && round < doubling_rounds(ranks); ++round)
    all.push_back((rank - (1 << round) + ranks) % ranks);
  return all;
}

/// The ranks that `rank` and partial sums are exchanged with.
std::vector<int> partners_by_merging(const EngineConfig& config, int rank) {
  if (!config.has_merging()) return {};
  const MergingPlan plan(config.members.workers);
  if (plan.gives(rank)) return {rank - 1};
  std::vector<int> all;
  for (int round = 0; round < plan.rounds(); ++round) all.push_back(plan.partner(rank, round));
  if (plan.takes(rank)) all.push_back(rank + 1);
  return all;
}

}  // namespace

LaneLayout::LaneLayout(const EngineConfig& config) : config_(config) {
  for (int member = 0; member < config.members.count(); ++member) {
    groups_[config.lending_groups[static_cast<std::size_t>(member)]].push_back(member);
    ++looked_at_;
  }
  for_each_credit(
      [this](Direction d, Priority p, std::uint64_t) { credits_of_member_ += credit_bytes(d, p); });
}

bool LaneLayout::exists(int receiver, const ChannelId& from) const {
  const Members& members = config_.members;
  if (from.member == receiver || config_.channel(from.priority).slots == 0) return false;
  if (from.priority == Priority::doubling)
    return from.direction == Direction::up && doubles(config_, from.member, receiver);
  if (from.priority == Priority::merging)
    return from.direction == Direction::up && merges(config_, from.member, receiver);
  return from.direction == Direction::up ? members.is_worker(from.member) && members.is_aggregator(receiver)
                                         : members.is_aggregator(from.member) && members.is_worker(receiver);
}

/// Bytes of the credit words of one channel: one word for each slot.
std::uint64_t LaneLayout::credit_bytes(Direction direction, Priority p) const {
  if (direction == Direction::down && between_ranks(p)) return 0;
  return (config_.channel(p).slots * sizeof(std::uint64_t) + kLine - 1) / kLine * kLine;
}

std::uint64_t LaneLayout::announcement_sink(int member) {
  return kLine * (1 + static_cast<std::uint64_t>(member));
}

std::uint64_t LaneLayout::credits_received(int member) const {
  return announcement_sink(config_.members.count()) + static_cast<std::uint64_t>(member) * credits_of_member_;
}

std::uint64_t LaneLayout::credits_given(int member) const {
  return credits_received(config_.members.count()) + static_cast<std::uint64_t>(member) * credits_of_member_;
}

/// There is no ring for what is lent: the sender keeps the messages.
std::uint64_t LaneLayout::ring_bytes(int receiver, const ChannelId& from) const {
  if (config_.lends(from.priority, receiver, from.member)) return 0;
  return config_.channel(from.priority).stride() * config_.channel(from.priority).slots;
}

/// How many members from `begin` to `end` are not `receiver`, and write their messages of this priority into
/// its rings if there are any.
std::uint64_t LaneLayout::ringed(Priority p, int receiver, int begin, int end) const {
  if (end <= begin) return 0;
  auto count = static_cast<std::uint64_t>(end - begin);
  if (!config_.lends(p, receiver, receiver)) return count - (begin <= receiver && receiver < end ? 1 : 0);
  const auto& lenders = groups_.at(config_.lending_groups[static_cast<std::size_t>(receiver)]);
  const auto first = std::lower_bound(lenders.begin(), lenders.end(), begin);
  return count - static_cast<std::uint64_t>(std::lower_bound(first, lenders.end(), end) - first);
}

/// How many of the first `end` members send to `receiver` at a priority between ranks, and into rings.
std::uint64_t LaneLayout::ringed_partners(Priority p, int receiver, int end) const {
  const auto partners = p == Priority::doubling ? senders_by_doubling(config_, receiver)
                                                : partners_by_merging(config_, receiver);
  return static_cast<std::uint64_t>(std::ranges::count_if(
      partners, [&](int member) { return member < end && !config_.lends(p, receiver, member); }));
}

/// Bytes of the rings of `receiver` for the channels from all members before `member`.
std::uint64_t LaneLayout::rings_before(int receiver, int member) const {
  const Members& members = config_.members;
  std::uint64_t bytes = 0;
  for (const Priority p : wire::kAllPriorities) {
    std::uint64_t rings = 0;
    if (between_ranks(p)) {
      rings = ringed_partners(p, receiver, member);
    } else {
      if (members.is_aggregator(receiver)) rings += ringed(p, receiver, 0, std::min(member, members.workers));
      if (members.is_worker(receiver))
        rings += ringed(p, receiver, members.aggregator_member(0),
                        std::min(member, members.aggregator_member(members.aggregators())));
    }
    bytes += rings * config_.channel(p).stride() * config_.channel(p).slots;
  }
  return bytes;
}

std::uint64_t LaneLayout::ring_offset(int receiver, const ChannelId& from) const {
  std::uint64_t offset = credits_given(config_.members.count()) + rings_before(receiver, from.member);
  bool found = false;
  for_each_channel(receiver, from.member, [&](const ChannelId& channel) {
    found |= channel == from;
    if (!found) offset += ring_bytes(receiver, channel);
  });
  return offset;
}

std::uint32_t LaneLayout::staging_buffers(int member, Priority p) const {
  if (between_ranks(p)) return engine::staging_buffers(config_, member, p);
  const auto [at, fresh] = buffers_.try_emplace({p, config_.lending_groups[static_cast<std::size_t>(member)],
                                                 config_.node(member), config_.members.is_worker(member)});
  if (fresh) {
    at->second = engine::staging_buffers(config_, member, p);
    looked_at_ += static_cast<std::uint64_t>(config_.members.count());
  }
  return at->second;
}

std::uint64_t LaneLayout::staging_offset(int member, Priority p) const {
  std::uint64_t offset =
      credits_given(config_.members.count()) + rings_before(member, config_.members.count());
  for (const Priority before : wire::kAllPriorities) {
    if (before == p) break;
    offset += config_.channel(before).stride() * staging_buffers(member, before);
  }
  return offset;
}

std::uint64_t LaneLayout::bytes(int member) const {
  constexpr Priority kLast = wire::kAllPriorities[wire::kPriorities - 1];
  return staging_offset(member, kLast) + config_.channel(kLast).stride() * staging_buffers(member, kLast);
}

}  // namespace nzcl::engine
