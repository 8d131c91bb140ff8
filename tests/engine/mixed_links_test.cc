// A member whose links differ: writes over one of them become visible in order, writes over the other do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using engine::Worker;
using testing::HasSubstr;
using testing::IsEmpty;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

/// Two single blocks of five, and so two direct writes for each receiver.
Message two_runs() {
  Message m;
  m.header.flags = wire::kHasBitmap;
  m.record = HandMade::record();
  m.bitmap = {0b00101};
  m.payload.assign(8, 1.0f);
  return m;
}

/// The direct writes to a rank: those with an immediate, or those without one.
std::int64_t direct_writes(const std::vector<HandFed::Sent>& sent, int rank, bool announced) {
  return std::count_if(sent.begin(), sent.end(), [&](const HandFed::Sent& s) {
    if (s.peer != rank || s.announced != announced) return false;
    return !announced || s.immediate.kind == Immediate::Kind::direct;
  });
}

TEST(MixedLinks, AnAggregatorAnnouncesDirectWritesOnlyOverTheUnorderedLink) {
  HandFed fed({.self = 2, .direct_bytes = 16, .ordered = true, .unordered_member = 1});
  Aggregator aggregator(fed.context(), Priority::express);
  for (const int rank : {0, 1}) fed.feed(rank, Direction::up, two_runs());
  const auto sent = fed.run(aggregator);
  EXPECT_THAT(fed.failure(), IsEmpty());
  EXPECT_EQ(direct_writes(sent, 0, false), 2) << "the notice behind them is enough";
  EXPECT_EQ(direct_writes(sent, 0, true), 0);
  EXPECT_EQ(direct_writes(sent, 1, false), 0);
  EXPECT_EQ(direct_writes(sent, 1, true), 2);
  const auto notices = std::count_if(sent.begin(), sent.end(), [](const HandFed::Sent& s) {
    return s.announced && s.immediate.kind == Immediate::Kind::message;
  });
  EXPECT_EQ(notices, 2) << "one for each rank";
}

// All ranks get a result in the same form, so the bound of the unordered link's endpoint holds for all of
// them.
TEST(MixedLinks, OneUnorderedLinkBoundsTheDirectWritesToAll) {
  constexpr std::uint64_t kRuns = engine::kAnnouncedWrites[0] + 1;
  const auto direct = [](int unordered_member) {
    HandFed fed({.self = 2,
                 .slots = 32,
                 .slot_bytes = 8192,
                 .direct_bytes = 1,
                 .ordered = true,
                 .unordered_member = unordered_member});
    Aggregator aggregator(fed.context(), Priority::bulk);
    Message m;
    m.header.flags = wire::kHasBitmap;
    m.record = HandMade::record(4096);
    m.bitmap.assign(1024 / 64, 0);
    fed.feed(1, Direction::up, m, Priority::bulk);
    for (std::uint64_t run = 0; run < kRuns; ++run) set_bit(std::span(m.bitmap), 2 * run);
    m.payload.assign(4 * kRuns, 1.0f);
    fed.feed(0, Direction::up, m, Priority::bulk);
    std::int64_t writes = 0;
    for (bool more = true; more;) {  // more writes than the outbox holds at once
      const auto sent = fed.run(aggregator);
      more = !sent.empty();
      for (const int rank : {0, 1})
        writes += direct_writes(sent, rank, false) + direct_writes(sent, rank, true);
    }
    EXPECT_THAT(fed.failure(), IsEmpty());
    EXPECT_TRUE(aggregator.idle());
    return writes;
  };
  EXPECT_EQ(direct(-1), static_cast<std::int64_t>(2 * kRuns));
  EXPECT_EQ(direct(1), 0) << "the result goes in messages";
}

/// A worker with the aggregators 2 and 3, and an operation whose only slice belongs to one of them.
struct TwoAggregators {
  explicit TwoAggregators(int owner)
      : fed({.self = 0, .dedicated = 2, .direct_bytes = 16, .ordered = true, .unordered_member = 3}),
        worker(fed.context(), Priority::express),
        member(static_cast<std::uint16_t>(2 + owner)) {
    std::uint64_t epoch = 0;
    while (fed.layout(epoch, HandMade::record()).owner(0) != static_cast<std::uint32_t>(owner)) ++epoch;
    std::vector<float> data(20, 0.0f);
    data[0] = data[8] = 1.0f;
    made = std::make_unique<HandMade>(fed, epoch, std::move(data));
    worker.submit(&made->operation);
    fed.run(worker);
  }
  void notice(std::uint32_t writes) {
    Message m = two_runs();
    m.payload.clear();
    m.header.epoch = made->operation.epoch;
    m.header.flags |= wire::kDirect;
    m.header.direct_writes = writes;
    fed.feed(member, Direction::down, m);
    fed.run(worker);
  }
  bool finished() const { return made->operation.finished(); }

  HandFed fed;
  Worker worker;
  std::uint16_t member;
  std::unique_ptr<HandMade> made;
};

TEST(MixedLinks, AWorkerNeedsOnlyTheNoticeOverTheOrderedLink) {
  TwoAggregators ordered(0);
  ordered.notice(2);
  EXPECT_THAT(ordered.fed.failure(), IsEmpty());
  EXPECT_TRUE(ordered.finished());
}

TEST(MixedLinks, AWorkerCountsDirectWritesOverTheUnorderedLink) {
  TwoAggregators unordered(1);
  unordered.worker.on_direct(unordered.member, 0);
  unordered.notice(2);
  EXPECT_FALSE(unordered.finished()) << "one of two writes has come";
  unordered.worker.on_direct(unordered.member, 0);
  EXPECT_THAT(unordered.fed.failure(), IsEmpty());
  EXPECT_TRUE(unordered.finished());
}

TEST(MixedLinks, AWorkerRefusesAnnouncementsOverTheOrderedLink) {
  TwoAggregators ordered(0);
  ordered.worker.on_direct(ordered.member, 0);
  EXPECT_THAT(ordered.fed.failure(), HasSubstr("aggregator 0 announced a direct write too many"));
}

}  // namespace
}  // namespace nzcl::test
