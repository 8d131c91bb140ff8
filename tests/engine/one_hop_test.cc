// The one-hop exchange of one rank, with two more ranks that the test plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/exchange/one_hop/one_hop_exchange.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::OneHopExchange;
using engine::Operation;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

constexpr std::uint32_t kSlots = 4;

class OneHopTest : public testing::Test {
 protected:
  explicit OneHopTest(std::uint32_t slots = kSlots)
      : fed_({.self = 0, .workers = 3, .dedicated = 0, .slots = slots, .one_hop = true}),
        exchange_(fed_.context()) {}

  /// Starts an operation to which this rank contributes block 1 with the values 1, 2, 3, 4.
  Operation& start(std::uint64_t epoch) {
    std::vector<float> data(20, 0.0f);
    std::iota(data.begin() + 4, data.begin() + 8, 1.0f);
    started_.push_back(std::make_unique<HandMade>(fed_, epoch, std::move(data)));
    exchange_.submit(started_.back()->operation);
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
  /// Sends the data of a contribution whose bitmap was sent before without any.
  void contribute_late(int rank, std::uint64_t epoch, std::vector<float> payload) {
    Message m;
    m.header.epoch = m.header.sequence = epoch;
    m.payload = std::move(payload);
    fed_.feed(rank, Direction::up, m);
  }
  std::vector<HandFed::Sent> step() {
    while (exchange_.step()) {
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
  OneHopExchange exchange_;
  std::vector<std::unique_ptr<HandMade>> started_;
};

TEST_F(OneHopTest, EveryOtherRankGetsTheContribution) {
  start(0);
  const auto sent = step();
  EXPECT_THAT(messages_to(sent), UnorderedElementsAre(1, 2));
  for (const auto& s : sent) {
    EXPECT_EQ(s.immediate, (Immediate{Immediate::Kind::message, {0, Direction::up, Priority::express}, 0}));
    EXPECT_THAT(s.message.bitmap, ElementsAre(0b00010u));
    EXPECT_THAT(s.message.payload, ElementsAre(1, 2, 3, 4));
  }
  EXPECT_THAT(exchange_.waiting_for().known, HasSubstr("rank(s) 1, 2 did not join"));
}

TEST_F(OneHopTest, TheSumStaysHere) {
  Operation& op = start(0);
  step();
  contribute(2, 0, 0b00010, {10, 20, 30, 40});
  step();
  EXPECT_FALSE(op.finished());
  contribute(1, 0, 0b00001, {7, 7, 7, 7});
  EXPECT_THAT(step(), IsEmpty()) << "nobody else is told";
  EXPECT_TRUE(op.finished());
  EXPECT_THAT(std::vector(data(0).begin(), data(0).begin() + 8), ElementsAre(7, 7, 7, 7, 11, 22, 33, 44));
  EXPECT_TRUE(exchange_.idle());
}

TEST_F(OneHopTest, NothingIsSentUnlessAllCanTakeIt) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) start(epoch);
  EXPECT_THAT(step(), SizeIs(2 * kSlots)) << "then the channels are full";
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, 1, 1));
  EXPECT_THAT(step(), IsEmpty()) << "rank 2 still has no room";
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, 2, 1));
  EXPECT_THAT(messages_to(step()), UnorderedElementsAre(1, 2));
}

TEST_F(OneHopTest, ARankThatGivesNoSlotsBackIsNamed) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) start(epoch);
  step();
  for (std::uint64_t epoch = 0; epoch < kSlots; ++epoch) {
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
    step();
    ASSERT_TRUE(started_[epoch]->operation.finished());
  }
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, 1, kSlots));
  step();
  EXPECT_FALSE(exchange_.idle());
  EXPECT_EQ(exchange_.waiting_for().suspected, "rank 2 (operation 4, slice 0)");
}

TEST_F(OneHopTest, SlotsGoBackInWritesOfTheirOwn) {
  for (std::uint64_t epoch = 0; epoch < kSlots / 2; ++epoch) {
    start(epoch);
    step();
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
  }
  const auto sent = step();
  EXPECT_THAT(sent, SizeIs(2));
  EXPECT_THAT(
      sent,
      Each(Field(&HandFed::Sent::immediate,
                 Immediate{Immediate::Kind::credit, {0, Direction::up, Priority::express}, kSlots / 2})));
}

class OneHopWindowTest : public OneHopTest {
 protected:
  OneHopWindowTest() : OneHopTest(32) {}
};

// This rank completes a slice when it has all contributions to it. Rank 1 may still lack those of rank 2, so
// that it holds the slices that this rank has completed and those that this rank has started since. Both
// together must not be more than kWindow.
TEST_F(OneHopWindowTest, HalfAWindowIsUnderWay) {
  constexpr std::uint64_t kHalf = engine::kWindow / 2;
  for (std::uint64_t epoch = 0; epoch < 3 * kHalf; ++epoch) start(epoch);
  EXPECT_THAT(messages_to(step()), SizeIs(2 * kHalf));
  for (std::uint64_t epoch = 0; epoch < kHalf; ++epoch) {
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
  }
  EXPECT_THAT(messages_to(step()), SizeIs(2 * kHalf));
}

// Only rank 1 contributes block 3, and it sends that block last. Block 1, which the others contribute, is
// summed before that, and can be seen in the output already.
TEST_F(OneHopTest, WhatIsThereIsSummedInTheOutput) {
  const auto block = [this](int b) {
    return std::vector<float>(data(0).begin() + 4 * b, data(0).begin() + 4 * (b + 1));
  };
  start(0);
  step();
  contribute(2, 0, 0b00010, {10, 20, 30, 40});
  contribute(1, 0, 0b01000, {});
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_FALSE(started_[0]->operation.finished());
  EXPECT_THAT(block(1), ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(exchange_.waiting_for().known, HasSubstr("rank(s) 1 stopped sending"));
  contribute_late(1, 0, {5, 6, 7, 8});
  EXPECT_THAT(messages_to(step()), IsEmpty()) << "nobody else is told";
  EXPECT_TRUE(started_[0]->operation.finished());
  EXPECT_THAT(fed_.failure(), IsEmpty());
  EXPECT_THAT(block(1), ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(block(3), ElementsAre(5, 6, 7, 8));
  EXPECT_TRUE(exchange_.idle());
}

TEST_F(OneHopTest, ADirectWriteIsRefused) {
  start(0);
  step();
  exchange_.direct_arrived(1, 0);
  EXPECT_THAT(fed_.failure(), HasSubstr("sums nothing for this rank"));
}

}  // namespace
}  // namespace nzcl::test
