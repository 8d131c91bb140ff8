// Where direct writes carry immediates, no more of them may be on their way than the receiver's endpoint was
// opened for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/exchange/push/aggregator.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using testing::IsEmpty;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

constexpr std::uint64_t kSlotBytes = 8192;

/// A contribution of `runs` single blocks of 4 floats, each with an absent block behind it. The tensor is one
/// bulk slice.
Message every_other_block(std::uint64_t sequence, std::uint64_t runs) {
  Message m;
  m.header.flags = wire::kHasBitmap;
  m.header.epoch = m.header.sequence = sequence;
  m.record = HandMade::record(4096);
  m.bitmap.assign(1024 / 64, 0);
  for (std::uint64_t run = 0; run < runs; ++run) set_bit(std::span(m.bitmap), 2 * run);
  m.payload.assign(4 * runs, 1.0f);
  return m;
}

class DirectBoundTest : public testing::Test {
 protected:
  explicit DirectBoundTest(bool ordered = false)
      : fed_({.self = 1,
              .workers = 1,
              .slots = 32,
              .slot_bytes = kSlotBytes,
              .direct_bytes = 1,
              .ordered = ordered}),
        aggregator_(fed_.context(), Priority::bulk) {}
  /// The number of direct writes that a full window of slices with `runs` runs each causes.
  std::int64_t direct_writes_of_a_window(std::uint64_t runs) {
    std::int64_t direct = 0;
    for (std::uint64_t sequence = 0; sequence < engine::kWindow; ++sequence) {
      fed_.feed(0, Direction::up, every_other_block(sequence, runs), Priority::bulk);
      for (bool more = true; more;) {  // more writes than the outbox holds at once
        const auto sent = fed_.run(aggregator_);
        more = !sent.empty();
        direct += std::count_if(sent.begin(), sent.end(), [](const auto& s) {
          return !s.announced || s.immediate.kind == Immediate::Kind::direct;
        });
      }
    }
    EXPECT_THAT(fed_.failure(), IsEmpty());
    EXPECT_TRUE(aggregator_.idle());
    return direct;
  }

  HandFed fed_;
  Aggregator aggregator_;
};

TEST_F(DirectBoundTest, AsManyAsMayBeAnnounced) {
  const std::uint64_t most = fed_.context().config.announced_writes(Priority::bulk);
  EXPECT_EQ(most, engine::kAnnouncedWrites[0]);
  EXPECT_EQ(direct_writes_of_a_window(most), engine::kWindow * most);
  EXPECT_LE(engine::kWindow * most, engine::immediates_bound(fed_.context().config));
}

TEST_F(DirectBoundTest, MoreGoInMessages) {
  EXPECT_EQ(direct_writes_of_a_window(engine::kAnnouncedWrites[0] + 1), 0);
}

class OrderedDirectTest : public DirectBoundTest {
 protected:
  OrderedDirectTest() : DirectBoundTest(true) {}
};

TEST_F(OrderedDirectTest, WritesWithoutImmediatesNeedNoBound) {
  EXPECT_EQ(direct_writes_of_a_window(engine::kAnnouncedWrites[0] + 1),
            engine::kWindow * (engine::kAnnouncedWrites[0] + 1));
}

TEST(DirectBound, ManyMembersShareWhatAnEndpointTakes) {
  engine::EngineConfig config;
  config.channels = {engine::ChannelConfig{128 << 10, 8}, engine::ChannelConfig{8 << 10, 8}};
  config.direct_bytes = 1;
  for (const int workers : {1, 2, 129, 1000, 4096}) {
    config.members.workers = workers;
    const std::uint64_t most =
        config.announced_writes(Priority::bulk) + config.announced_writes(Priority::express);
    EXPECT_GT(most, 0u) << workers;
    EXPECT_LE(most * engine::kWindow * static_cast<std::uint64_t>(workers), engine::kAnnouncedArrivals);
  }
  config.set_links({.ordered = false});
  const std::uint64_t announced = engine::immediates_bound(config);
  config.set_links({.ordered = true});
  EXPECT_LT(engine::immediates_bound(config), announced) << "ordered direct writes are not announced";
}

}  // namespace
}  // namespace nzcl::test
