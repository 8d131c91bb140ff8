// A mirrored class: a worker and the aggregator beside it, with two more ranks that the test plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/engine/aggregator.h"
#include "runtime/engine/worker.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using engine::Operation;
using engine::Worker;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;
using wire::Class;
using wire::Direction;
using wire::Immediate;

constexpr std::uint32_t kSlots = 4;

class MirroredTest : public testing::Test {
 protected:
  explicit MirroredTest(std::uint32_t slots = kSlots, std::uint64_t direct_bytes = 1 << 20)
      : fed_({.self = 0,
              .workers = 3,
              .dedicated = 0,
              .slots = slots,
              .mirrored = true,
              .direct_bytes = direct_bytes}),
        worker_(fed_.context(), Class::express),
        aggregator_(fed_.context(), Class::express) {
    worker_.connect(&aggregator_);
    aggregator_.connect(&worker_);
  }

  /// Block 1 is 1, 2, 3, 4.
  Operation& start(std::uint64_t epoch) {
    std::vector<float> data(20, 0.0f);
    std::iota(data.begin() + 4, data.begin() + 8, 1.0f);
    started_.push_back(std::make_unique<HandMade>(fed_, epoch, std::move(data)));
    worker_.submit(&started_.back()->operation);
    return started_.back()->operation;
  }
  void contribute(int rank, std::uint64_t epoch, std::uint64_t bitmap, std::vector<float> payload) {
    Message m;
    m.header.flags = wire::kHasBitmap;
    m.header.epoch = m.header.sequence = epoch;
    m.record = HandMade::record();
    m.bitmap = {bitmap};
    m.payload = std::move(payload);
    fed_.feed(rank, Direction::up, m);
  }
  /// What an earlier bitmap has promised.
  void contribute_late(int rank, std::uint64_t epoch, std::vector<float> payload) {
    Message m;
    m.header.epoch = m.header.sequence = epoch;
    m.payload = std::move(payload);
    fed_.feed(rank, Direction::up, m);
  }
  std::vector<HandFed::Sent> step() {
    while (worker_.step() | aggregator_.step()) {
    }
    return fed_.take_sent();
  }
  static std::vector<int> messages_to(const std::vector<HandFed::Sent>& sent) {
    std::vector<int> peers;
    for (const auto& s : sent) {
      if (s.immediate.kind == Immediate::Kind::message) peers.push_back(s.peer);
    }
    return peers;
  }
  const std::vector<float>& data(std::size_t operation) const { return started_[operation]->data; }

  HandFed fed_;
  Worker worker_;
  Aggregator aggregator_;
  std::vector<std::unique_ptr<HandMade>> started_;
};

TEST_F(MirroredTest, EveryOtherRankGetsTheContribution) {
  start(0);
  const auto sent = step();
  EXPECT_THAT(messages_to(sent), UnorderedElementsAre(1, 2));
  for (const auto& s : sent) {
    EXPECT_EQ(s.immediate, (Immediate{Immediate::Kind::message, {0, Direction::up, Class::express}, 0}));
    EXPECT_THAT(s.message.bitmap, ElementsAre(0b00010u));
    EXPECT_THAT(s.message.payload, ElementsAre(1, 2, 3, 4));
  }
  EXPECT_THAT(aggregator_.waiting_for(), HasSubstr("rank(s) 1, 2 did not join"));
}

TEST_F(MirroredTest, TheSumStaysHere) {
  Operation& op = start(0);
  step();
  contribute(2, 0, 0b00010, {10, 20, 30, 40});
  step();
  EXPECT_FALSE(op.finished());
  contribute(1, 0, 0b00001, {7, 7, 7, 7});
  EXPECT_THAT(step(), IsEmpty()) << "nobody else is told";
  EXPECT_TRUE(op.finished());
  EXPECT_THAT(std::vector(data(0).begin(), data(0).begin() + 8), ElementsAre(7, 7, 7, 7, 11, 22, 33, 44));
  EXPECT_FALSE(worker_.busy());
  EXPECT_TRUE(aggregator_.idle());
}

TEST_F(MirroredTest, NothingIsSentUnlessAllCanTakeIt) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) start(epoch);
  EXPECT_THAT(step(), SizeIs(2 * kSlots)) << "then the channels are full";
  EXPECT_TRUE(fed_.context().credit(Class::express, Direction::up, 1, 1));
  EXPECT_THAT(step(), IsEmpty()) << "rank 2 still has no room";
  EXPECT_TRUE(fed_.context().credit(Class::express, Direction::up, 2, 1));
  EXPECT_THAT(messages_to(step()), UnorderedElementsAre(1, 2));
}

TEST_F(MirroredTest, ARankThatGivesNoSlotsBackIsNamed) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) start(epoch);
  step();
  for (std::uint64_t epoch = 0; epoch < kSlots; ++epoch) {
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
    step();
    ASSERT_TRUE(started_[epoch]->operation.finished());
  }
  EXPECT_TRUE(fed_.context().credit(Class::express, Direction::up, 1, kSlots));
  step();
  EXPECT_TRUE(worker_.busy());
  EXPECT_EQ(worker_.waiting_for(), "rank 2 (operation 4, slice 0)");
}

TEST_F(MirroredTest, SlotsGoBackInWritesOfTheirOwn) {
  for (std::uint64_t epoch = 0; epoch < kSlots / 2; ++epoch) {
    start(epoch);
    step();
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
  }
  const auto sent = step();
  EXPECT_THAT(sent, SizeIs(2));
  EXPECT_THAT(
      sent, Each(Field(&HandFed::Sent::immediate,
                       Immediate{Immediate::Kind::credit, {0, Direction::up, Class::express}, kSlots / 2})));
}

class MirroredWindowTest : public MirroredTest {
 protected:
  MirroredWindowTest() : MirroredTest(32) {}
};

// Rank 1 may have sent, and so let this rank complete, as many slices as it may have under way itself; its
// aggregator, which rank 2 lets wait, then holds both ranks' and must not be sent more than kWindow.
TEST_F(MirroredWindowTest, HalfAWindowIsUnderWay) {
  constexpr std::uint64_t kHalf = engine::kWindow / 2;
  for (std::uint64_t epoch = 0; epoch < 3 * kHalf; ++epoch) start(epoch);
  EXPECT_THAT(messages_to(step()), SizeIs(2 * kHalf));
  for (std::uint64_t epoch = 0; epoch < kHalf; ++epoch) {
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
  }
  EXPECT_THAT(messages_to(step()), SizeIs(2 * kHalf));
}

// Block 3 is rank 1's alone, who sends it last: block 1, the others', is summed before, and the output shows
// where.
class MirroredDirectTest : public MirroredTest {
 protected:
  explicit MirroredDirectTest(std::uint64_t direct_bytes = 16) : MirroredTest(kSlots, direct_bytes) {}
  void sum_block_one() {
    start(0);
    step();
    contribute(2, 0, 0b00010, {10, 20, 30, 40});
    contribute(1, 0, 0b01000, {});
    EXPECT_THAT(step(), IsEmpty());
    EXPECT_FALSE(started_[0]->operation.finished());
  }
  void send_block_three() {
    contribute_late(1, 0, {5, 6, 7, 8});
    EXPECT_THAT(messages_to(step()), IsEmpty()) << "nobody else is told";
    EXPECT_TRUE(started_[0]->operation.finished());
    EXPECT_THAT(fed_.failure(), IsEmpty());
    EXPECT_THAT(block(1), ElementsAre(11, 22, 33, 44));
    EXPECT_THAT(block(3), ElementsAre(5, 6, 7, 8));
    EXPECT_FALSE(worker_.busy());
    EXPECT_TRUE(aggregator_.idle());
  }
  std::vector<float> block(int b) const { return {data(0).begin() + 4 * b, data(0).begin() + 4 * (b + 1)}; }
};

TEST_F(MirroredDirectTest, TheSumIsMadeInTheOutput) {
  sum_block_one();
  EXPECT_THAT(block(1), ElementsAre(11, 22, 33, 44));
  send_block_three();
}

class MirroredPackedTest : public MirroredDirectTest {
 protected:
  MirroredPackedTest() : MirroredDirectTest(17) {}
};

TEST_F(MirroredPackedTest, ShortRunsGoByAMessage) {
  sum_block_one();
  EXPECT_THAT(block(1), ElementsAre(1, 2, 3, 4)) << "the message is not full";
  send_block_three();
}

TEST_F(MirroredTest, ADirectWriteIsRefused) {
  start(0);
  step();
  worker_.on_direct(1, 0);
  EXPECT_THAT(fed_.failure(), HasSubstr("sums nothing for this rank"));
}

}  // namespace
}  // namespace nzcl::test
