// A worker with one dedicated aggregator. The test writes the aggregator's results by hand: right ones, and
// wrong ones that must be refused.
#include "runtime/exchange/push/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Operation;
using engine::Worker;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

constexpr int kAggregator = 2;

struct Rank {
  explicit Rank(std::uint32_t slots = 4, std::uint64_t ahead_bytes = 0)
      : fed_({.self = 0, .slots = slots, .direct_bytes = 16, .ahead_bytes = ahead_bytes}),
        worker_(fed_.context(), Priority::express) {}

  /// Starts an operation of which blocks 1 and 4 are not zero.
  Operation& start(std::uint64_t epoch = 0) {
    std::vector<float> data(20, 0.0f);
    std::iota(data.begin() + 4, data.begin() + 8, 1.0f);
    std::iota(data.begin() + 16, data.end(), 11.0f);
    started_.push_back(std::make_unique<HandMade>(fed_, epoch, std::move(data)));
    worker_.submit(&started_.back()->operation);
    return started_.back()->operation;
  }
  /// The first two blocks of the operation that was started last.
  std::vector<float> start_of_data() const {
    const auto& data = started_.back()->data;
    return {data.begin(), data.begin() + 8};
  }
  static Message result(std::uint64_t operation, std::uint64_t bitmap, std::vector<float> payload) {
    Message m;
    m.header.flags = wire::kHasBitmap;
    m.header.epoch = operation;
    m.header.sequence = operation;
    m.bitmap = {bitmap};
    m.payload = std::move(payload);
    return m;
  }
  std::vector<HandFed::Sent> step() {
    while (worker_.step()) {
    }
    return fed_.take_sent();
  }
  std::string failure_after(const Message& m) {
    fed_.feed(kAggregator, Direction::down, m);
    step();
    return fed_.failure();
  }

  HandFed fed_;
  Worker worker_;
  std::vector<std::unique_ptr<HandMade>> started_;
};

class WorkerTest : public testing::Test, protected Rank {};

TEST_F(WorkerTest, SendsBitmapAndNonZeroBlocksInOneMessage) {
  start();
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, kAggregator);
  EXPECT_EQ(sent[0].immediate,
            (Immediate{Immediate::Kind::message, {0, Direction::up, Priority::express}, 0}));
  EXPECT_THAT(sent[0].message.bitmap, ElementsAre(0b10010u));
  EXPECT_THAT(sent[0].message.payload, ElementsAre(1, 2, 3, 4, 11, 12, 13, 14));
  EXPECT_EQ(sent[0].message.record.count, 20u);
  EXPECT_TRUE(worker_.busy());
  EXPECT_THAT(worker_.waiting_for(), HasSubstr("aggregator 0 (operation 0, slice 0)"));
}

TEST_F(WorkerTest, PutsTheResultInPlaceAndCompletes) {
  Operation& op = start();
  step();
  fed_.feed(kAggregator, Direction::down, result(0, 0b00011, {5, 5, 5, 5, 6, 7, 8, 9}));
  EXPECT_FALSE(op.finished());
  step();
  EXPECT_TRUE(op.finished());
  EXPECT_FALSE(worker_.busy());
  EXPECT_THAT(start_of_data(), ElementsAre(5, 5, 5, 5, 6, 7, 8, 9));
  EXPECT_EQ(op.union_blocks, 2u);
}

TEST(WorkerGathers, IsNotFinishedWhileAWriteStillReadsTheInput) {
  HandFed fed({.self = 0});
  Worker worker(fed.context(), Priority::express);
  HandMade made(fed, 0, std::vector<float>(64, 1.0f));  // long enough to be gathered and not copied
  worker.submit(&made.operation);
  worker.step();
  ASSERT_FALSE(fed.context().outbox.empty());
  const verbs::Write& write = fed.context().outbox.pending().front();
  ASSERT_GE(write.segments.size(), 2u);
  ASSERT_EQ(write.segments[write.segments.size() - 2].region, made.region.get()) << "in front of the seal";
  EXPECT_EQ(engine::WriteContext::decode(write.context).operation, made.operation.table_index);
  fed.take_sent();
  fed.feed(kAggregator, Direction::down, Rank::result(0, 0, {}));
  worker.step();
  EXPECT_FALSE(made.operation.finished()) << "its region must stay registered";
  made.operation.local_write_done();
  EXPECT_TRUE(made.operation.finished());
}

TEST_F(WorkerTest, AResultInPiecesIsWholeOnlyAtItsEnd) {
  Operation& op = start();
  step();
  fed_.feed(kAggregator, Direction::down, result(0, 0b00011, {5, 5}));
  step();
  Message rest;
  rest.header.stream_offset = 8;
  rest.payload = {5, 5, 6, 7, 8, 9};
  EXPECT_FALSE(op.finished());
  fed_.feed(kAggregator, Direction::down, rest);
  step();
  EXPECT_TRUE(op.finished());
  EXPECT_THAT(start_of_data(), ElementsAre(5, 5, 5, 5, 6, 7, 8, 9));
}

TEST_F(WorkerTest, ADirectResultNeedsItsNoticeAndAllItsWrites) {
  Operation& op = start();
  step();
  worker_.on_direct(kAggregator, 0);  // a write may be announced before the notice
  Message notice = result(0, 0b00011, {});
  notice.header.flags |= wire::kDirect;
  notice.header.direct_writes = 2;
  fed_.feed(kAggregator, Direction::down, notice);
  step();
  EXPECT_FALSE(op.finished());
  worker_.on_direct(kAggregator, 0);
  EXPECT_TRUE(op.finished());
}

TEST_F(WorkerTest, StopsWithoutCreditsAndGoesOnWithThem) {
  for (std::uint64_t epoch = 0; epoch < 6; ++epoch) start(epoch);
  EXPECT_THAT(step(), SizeIs(4));
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, kAggregator, 1));
  EXPECT_THAT(step(), SizeIs(1));
}

TEST(WorkerAhead, StartsNoMoreThanItMayHaveIncomplete) {
  const auto started = [](std::uint64_t ahead_bytes) {
    Rank t(32, ahead_bytes);
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) t.start(epoch);
    const std::size_t first = t.step().size();  // limited by the number of staging buffers
    return first + t.step().size();
  };
  constexpr std::uint64_t kTensor = 80;  // bytes of an operation, which is one slice
  EXPECT_EQ(started(0), engine::kWorkerWindow);
  EXPECT_EQ(started(5 * kTensor), 5u);
  EXPECT_EQ(started(5 * kTensor + 1), 6u) << "a slice starts as long as there is any room";
  EXPECT_EQ(started(1), engine::kLeastWindow) << "a slice is sent while another one is summed";
  EXPECT_EQ(started(1000 * kTensor), engine::kWorkerWindow);
}

TEST(WorkerAhead, StartsTheNextWhenTheOldestIsComplete) {
  Rank t(32, 240);
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) t.start(epoch);
  EXPECT_THAT(t.step(), SizeIs(3));
  t.fed_.feed(kAggregator, Direction::down, Rank::result(0, 0, {}));
  const auto sent = t.step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].message.header.sequence, 3u);
}

// --- Results that are wrong, and must be refused

TEST_F(WorkerTest, ResultsOfOperationsThatAreNotRunningAreRefused) {
  EXPECT_THAT(failure_after(result(0, 0, {})),
              HasSubstr("aggregator 0 sent a result for operation 0 slice 0, which is not running"));
}

TEST_F(WorkerTest, ResultsThatDoNotFitAreRefused) {
  const auto refused = [](const std::function<void(Message&)>& change) {
    Rank t;
    const Operation& op = t.start();
    t.step();
    Message m = result(0, 0b00011, {5, 5, 5, 5, 6, 7, 8, 9});
    change(m);
    const std::string text = t.failure_after(m);
    EXPECT_FALSE(op.finished());
    return text;
  };
  EXPECT_THAT(refused([](Message& m) { m.header.magic = 1; }), HasSubstr("malformed result"));
  EXPECT_THAT(refused([](Message& m) { m.header.payload_bytes = 1000; }), HasSubstr("malformed result"));
  EXPECT_THAT(refused([](Message& m) { m.header.epoch = 3; }), HasSubstr("not running"));
  EXPECT_THAT(refused([](Message& m) { m.header.slice = 3; }), HasSubstr("not running"));
  EXPECT_THAT(refused([](Message& m) { m.bitmap.push_back(0); }), HasSubstr("bitmap of 16 bytes, not 8"));
  EXPECT_THAT(refused([](Message& m) { m.header.stream_offset = 4; }), HasSubstr("out of order"));
  EXPECT_THAT(refused([](Message& m) { m.bitmap[0] = 1; }), HasSubstr("out of order"))
      << "more data than the union has";
  EXPECT_THAT(refused([](Message& m) {
                m.header.flags = 0;
                m.bitmap.clear();
              }),
              HasSubstr("out of order"))
      << "data before the union";
}

TEST_F(WorkerTest, ADirectWriteForNothingIsRefused) {
  worker_.on_direct(kAggregator, 3);
  EXPECT_THAT(fed_.failure(), HasSubstr("not running"));
}

/// A rank that gives tiles to an aggregator, in small slots.
struct TiledRank {
  TiledRank()
      : fed({.self = 0, .slot_bytes = kSlotBytes, .tile_block_bytes = 64}),
        worker(fed.context(), Priority::bulk) {}
  void start(std::size_t count, const std::string& refusal = "") {
    wire::OperationRecord record = HandMade::record();
    record.block_elems = 1;
    started.push_back(
        std::make_unique<HandMade>(fed, started.size(), std::vector<float>(count, 1.0f), record));
    Operation& op = started.back()->operation;
    ASSERT_TRUE(op.layout.tiled());
    if (!refusal.empty()) {
      op.refusal = std::make_unique<wire::Refusal>(std::uint16_t{0}, std::uint16_t{1}, refusal);
      op.set_no_input();
    }
    worker.submit(&op);
  }
  static constexpr std::uint64_t kSlotBytes = 960;
  HandFed fed;
  Worker worker;
  std::vector<std::unique_ptr<HandMade>> started;
};

/// There is room for the section's header and record behind the tiles, and not for the reason as well. It
/// would be written over the slot's end, into the next one.
TEST(TiledWorkerTest, ARefusalThatDoesNotFitBehindTilesGoesIntoTheNextMessage) {
  const std::string reason(wire::kMostRefusalText, 'x');
  for (std::size_t count = 100; count < 220; ++count) {
    TiledRank rank;
    rank.start(count);
    rank.start(count, reason);
    const auto sent = rank.fed.run(rank.worker);
    std::size_t refusals = 0;
    for (const auto& message : sent) {
      EXPECT_LE(message.bytes, TiledRank::kSlotBytes + wire::kSealBytes) << count << " elements";
      std::vector<Message> sections = message.more;
      sections.push_back(message.message);
      for (const Message& section : sections) {
        if ((section.header.flags & wire::kRefused) == 0) continue;
        ++refusals;
        EXPECT_EQ(section.header.payload_bytes, reason.size());
      }
    }
    EXPECT_EQ(refusals, rank.started.back()->operation.layout.slices());
  }
}

}  // namespace
}  // namespace nzcl::test
