// An aggregator has more receivers here than its outbox has room for writes. It must go on receiver by
// receiver, and never wait until there is room for all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using engine::Operation;
using engine::Outbox;
using engine::Worker;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

constexpr int kWorkers = 600;
static_assert(kWorkers > static_cast<int>(Outbox::kCapacity));

/// Contributes blocks 0 and 2 of five: two runs, and so two direct writes.
Message contribution(float value) {
  Message m;
  m.header.flags = wire::kHasBitmap;
  m.record = HandMade::record();
  m.bitmap = {0b00101};
  m.payload = std::vector<float>(8, value);
  return m;
}

struct Traffic {
  std::map<int, int> direct, notices;  // writes, by receiver
  std::vector<HandFed::Sent> sent;
};

/// Steps until nothing moves any more. Empties the outbox whenever the engines cannot go on without room in
/// it.
template <typename Step>
Traffic run(HandFed& fed, Step step) {
  Traffic traffic;
  for (bool more = true; more;) {
    while (step()) {
    }
    auto sent = fed.take_sent();
    more = !sent.empty();
    for (auto& s : sent) {
      if (s.immediate.kind == Immediate::Kind::direct) ++traffic.direct[s.peer];
      if (s.immediate.kind == Immediate::Kind::message) ++traffic.notices[s.peer];
      traffic.sent.push_back(std::move(s));
    }
  }
  return traffic;
}

TEST(ManyReceivers, DirectResultsReachEveryOne) {
  HandFed fed({.self = kWorkers, .workers = kWorkers, .direct_bytes = 16});
  Aggregator aggregator(fed.context(), Priority::express);
  for (int rank = 0; rank < kWorkers; ++rank) fed.feed(rank, Direction::up, contribution(1));
  const std::uint32_t free = fed.context().pool(Priority::express).available();
  const Traffic traffic = run(fed, [&] { return aggregator.step(); });
  EXPECT_EQ(fed.failure(), "");
  EXPECT_THAT(traffic.direct, SizeIs(kWorkers));
  EXPECT_THAT(traffic.direct, Each(Pair(testing::_, 2)));
  EXPECT_THAT(traffic.notices, SizeIs(kWorkers));
  EXPECT_THAT(traffic.notices, Each(Pair(testing::_, 1)));
  for (const auto& s : traffic.sent) {
    if (s.immediate.kind == Immediate::Kind::message) {
      EXPECT_EQ(s.message.header.direct_writes, 2u);
    } else if (s.immediate.kind == Immediate::Kind::direct) {
      EXPECT_THAT(s.message.payload, ElementsAre(600, 600, 600, 600));
    }
  }
  EXPECT_TRUE(aggregator.idle());
  EXPECT_EQ(fed.context().pool(Priority::express).available(), free) << "every buffer came back";
}

class ManyColocated : public testing::Test {
 protected:
  ManyColocated()
      : fed_({.self = 0, .workers = kWorkers, .dedicated = 0, .direct_bytes = 16}),
        worker_(fed_.context(), Priority::express),
        aggregator_(fed_.context(), Priority::express) {
    worker_.connect(&aggregator_);
    aggregator_.connect(&worker_);
  }
  /// An operation whose only slice this rank owns.
  Operation& start() {
    std::uint64_t epoch = 0;
    while (fed_.layout(epoch, HandMade::record()).owner(0) != 0) ++epoch;
    started_ = std::make_unique<HandMade>(fed_, epoch, std::vector<float>(20, 0.0f));
    worker_.submit(&started_->operation);
    for (int rank = 1; rank < kWorkers; ++rank) {
      Message m = contribution(1);
      m.header.epoch = epoch;
      fed_.feed(rank, Direction::up, m);
    }
    return started_->operation;
  }
  bool step() { return worker_.step() | aggregator_.step(); }

  HandFed fed_;
  Worker worker_;
  Aggregator aggregator_;
  std::unique_ptr<HandMade> started_;
};

TEST_F(ManyColocated, EveryWriteFromTheOutputIsCounted) {
  Operation& op = start();
  const Traffic traffic = run(fed_, [&] { return step(); });
  EXPECT_EQ(fed_.failure(), "");
  EXPECT_FALSE(worker_.busy());
  const auto reads = std::count_if(traffic.sent.begin(), traffic.sent.end(),
                                   [](const auto& s) { return s.reads_operation; });
  EXPECT_EQ(reads, 2 * (kWorkers - 1));
  for (auto i = reads; i > 0; --i) {
    EXPECT_FALSE(op.finished()) << i << " writes still read from the output";
    op.local_write_done();
  }
  EXPECT_TRUE(op.finished());
}

TEST_F(ManyColocated, AFailureBetweenTwoReceiversEndsThePiece) {
  Operation& op = start();
  while (step()) {
  }
  EXPECT_THAT(fed_.take_sent(), SizeIs(Outbox::kCapacity)) << "the first of two rounds";
  fed_.context().fail(ErrorCode::peer_failed, "rank 599 is gone");
  EXPECT_FALSE(step());
  EXPECT_THAT(fed_.take_sent(), IsEmpty()) << "nothing is written after a failure";
  op.fail({ErrorCode::peer_failed, "rank 599 is gone"});
  EXPECT_TRUE(op.finished());
}

}  // namespace
}  // namespace nzcl::test
