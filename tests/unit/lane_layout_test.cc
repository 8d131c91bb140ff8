// Where everything lies in lane memories, and how few members a member looks at to know it of all of them.
#include "runtime/channel/lane_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "runtime/channel/staging_banks.h"

namespace nzcl::engine {
namespace {

using wire::ChannelId;
using wire::Direction;
using wire::Priority;

struct Shape {
  int workers = 1, dedicated = 0;
  int per_host = 0;  // members of a host lend to each other; 0: nobody lends
  int nodes = 1;     // of each host; its members take turns
  bool between_ranks = true;

  friend void PrintTo(const Shape& s, std::ostream* out) {
    *out << s.workers << " workers, " << s.dedicated << " aggregators, " << s.per_host << " per host, "
         << s.nodes << " nodes, between ranks " << s.between_ranks;
  }
};

EngineConfig config_of(const Shape& shape) {
  EngineConfig config;
  config.members = {.self = 0, .workers = shape.workers, .dedicated = shape.dedicated};
  const bool lent = shape.per_host > 0;
  config.channels[static_cast<std::size_t>(Priority::bulk)] = {4096, 8, lent};
  config.channels[static_cast<std::size_t>(Priority::express)] = {512, 3, false};
  if (shape.between_ranks && shape.dedicated == 0) {
    config.channels[static_cast<std::size_t>(Priority::doubling)] = {2048, 2, false};
    config.channels[static_cast<std::size_t>(Priority::merging)] = {4096, 5, lent};
  }
  config.set_links({});
  for (int member = 0; member < config.members.count(); ++member) {
    config.lending_groups[static_cast<std::size_t>(member)] = lent ? member / shape.per_host : -1;
    config.nodes.push_back(member % shape.nodes);
  }
  return config;
}

/// Calls visit(channel, offset) for every channel to `receiver`. Returns the offset at which the rings end.
template <typename Visit>
std::uint64_t walk(const EngineConfig& config, const LaneLayout& layout, int receiver, Visit visit) {
  std::uint64_t offset = layout.credits_given(config.members.count());
  for (int member = 0; member < config.members.count(); ++member) {
    for (const Direction direction : {Direction::up, Direction::down}) {
      for (const Priority p : wire::kAllPriorities) {
        const ChannelId channel{static_cast<std::uint16_t>(member), direction, p};
        if (!layout.exists(receiver, channel)) continue;
        visit(channel, offset);
        if (config.lends(p, receiver, member)) continue;
        offset += config.channel(p).stride() * config.channel(p).slots;
      }
    }
  }
  return offset;
}

class LaneLayoutTest : public testing::TestWithParam<Shape> {};

TEST_P(LaneLayoutTest, IsThatOfAWalkOverAllChannels) {
  const EngineConfig config = config_of(GetParam());
  const LaneLayout layout(config);
  for (int receiver = 0; receiver < config.members.count(); ++receiver) {
    std::uint64_t offset = walk(config, layout, receiver, [&](const ChannelId& channel, std::uint64_t at) {
      EXPECT_EQ(layout.ring_offset(receiver, channel), at)
          << channel.member << " to " << receiver << ", priority " << static_cast<int>(channel.priority);
    });
    for (const Priority p : wire::kAllPriorities) {
      EXPECT_EQ(layout.staging_offset(receiver, p), offset) << receiver;
      EXPECT_EQ(layout.staging_buffers(receiver, p), staging_buffers(config, receiver, p)) << receiver;
      offset += config.channel(p).stride() * staging_buffers(config, receiver, p);
    }
    EXPECT_EQ(layout.bytes(receiver), offset) << receiver;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LaneLayoutTest,
    testing::Values(Shape{}, Shape{.workers = 2}, Shape{.workers = 7}, Shape{.workers = 16, .per_host = 16},
                    Shape{.workers = 13, .per_host = 4, .nodes = 3}, Shape{.workers = 12, .per_host = 1},
                    Shape{.workers = 5, .dedicated = 2, .between_ranks = false},
                    Shape{.workers = 5, .dedicated = 3, .per_host = 3, .nodes = 2},
                    Shape{.workers = 9, .per_host = 5, .nodes = 2, .between_ranks = false}));

/// What a member asks for when it connects: the offsets of its channels at every other member, and the sizes
/// of the lane memories of its host.
std::uint64_t looked_at_by_one(const Shape& shape) {
  const EngineConfig config = config_of(shape);
  const LaneLayout layout(config);
  const auto self = static_cast<std::uint16_t>(config.members.self);
  std::uint64_t sum = 0;
  for (int member = 1; member < config.members.count(); ++member) {
    layout.for_each_channel(member, self, [&](const ChannelId& c) { sum += layout.ring_offset(member, c); });
    layout.for_each_channel(self, member, [&](const ChannelId& c) { sum += layout.ring_offset(self, c); });
    if (config.lends(Priority::bulk, self, member)) sum += layout.bytes(member);
  }
  EXPECT_GT(sum, 0u);
  return layout.looked_at();
}

TEST(LaneLayout, OfAllMembersTakesAFewLooksAtEach) {
  for (const int members : {1024, 4096}) {
    EXPECT_EQ(looked_at_by_one({.workers = members}), static_cast<std::uint64_t>(members));
    for (const int per_host : {8, members}) {
      const Shape shape{.workers = members, .per_host = per_host, .nodes = 2};
      EXPECT_LE(looked_at_by_one(shape), 5 * static_cast<std::uint64_t>(members)) << per_host;
    }
  }
}

}  // namespace
}  // namespace nzcl::engine
