// Gathering in one hop: the exchange of rank 0, with two more ranks that the test plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string_view>

#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/gather/gather_exchange.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::GatherExchange;
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
        exchange_(fed_.context(), Priority::express, engine::one_hop_schedule(3)) {}

  /// Starts an operation to which this rank contributes block 1 with the values 1, 2, 3, 4.
  Operation& start(std::uint64_t epoch) {
    std::vector<float> data(20, 0.0f);
    std::iota(data.begin() + 4, data.begin() + 8, 1.0f);
    return start(epoch, std::move(data));
  }
  Operation& start(std::uint64_t epoch, std::vector<float> data) {
    started_.push_back(std::make_unique<HandMade>(fed_, epoch, std::move(data)));
    const Operation& op = started_.back()->operation;
    agree(fed_.context(), 0, epoch, op.record, op.refusal.get());
    exchange_.submit(started_.back()->operation);
    return started_.back()->operation;
  }
  static Message message(std::uint64_t epoch, std::uint64_t bitmap) {
    Message m;
    m.header.flags = wire::kHasBitmap;
    m.header.epoch = m.header.sequence = epoch;
    m.record = HandMade::record();
    m.bitmap = {bitmap};
    return m;
  }
  void contribute(int rank, std::uint64_t epoch, std::uint64_t bitmap, std::vector<float> payload) {
    Message m = message(epoch, bitmap);
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
  GatherExchange exchange_;
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

/// README.md beside the exchange says which lines these are, and why.
TEST_F(OneHopTest, AMessageOfFewBytesHasThreeLines) {
  constexpr std::uint64_t kLine = 64;
  start(0);  // 16 bytes of values
  while (exchange_.step()) {
  }
  std::uint64_t bytes = 0;
  for (const auto& segment : fed_.context().outbox.pending().front().segments) bytes += segment.bytes;
  EXPECT_GT(bytes, 2 * kLine);
  EXPECT_LE(bytes, 3 * kLine);
  EXPECT_EQ(
      engine::LaneLayout(fed_.context().config).ring_offset(1, {0, Direction::up, Priority::express}) % kLine,
      0u);
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

TEST_F(OneHopTest, WhoHasRoomGetsItsMessage) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) start(epoch);
  EXPECT_THAT(step(), SizeIs(2 * kSlots)) << "then the channels are full";
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, 1, 1));
  EXPECT_THAT(messages_to(step()), ElementsAre(1)) << "rank 2 still has no room";
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, 2, 1));
  EXPECT_THAT(messages_to(step()), ElementsAre(2));
}

TEST_F(OneHopTest, NothingIsSummedBeforeAllMessagesHaveLeft) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) {
    Operation& op = start(epoch);
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
    step();
    EXPECT_EQ(op.finished(), epoch < kSlots);
  }
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, 1, 1));
  EXPECT_TRUE(fed_.context().credit(Priority::express, Direction::up, 2, 1));
  step();
  EXPECT_TRUE(started_.back()->operation.finished());
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

// The contributions of the others are there, and this rank's only lacks a slot.
TEST_F(OneHopTest, ARankThatLacksASlotHasJoined) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) start(epoch);
  step();
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) {
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
    step();
  }
  EXPECT_THAT(exchange_.waiting_for().known, IsEmpty());
  EXPECT_EQ(exchange_.waiting_for().suspected,
            "rank 1 (operation 4, slice 0), rank 2 (operation 4, slice 0)");
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

TEST_F(OneHopWindowTest, AWindowIsUnderWay) {
  constexpr std::uint64_t kMost = engine::kGatherWindow;
  for (std::uint64_t epoch = 0; epoch < 3 * kMost; ++epoch) start(epoch);
  EXPECT_THAT(messages_to(step()), SizeIs(2 * kMost));
  for (std::uint64_t epoch = 0; epoch < kMost; ++epoch) {
    contribute(1, epoch, 0, {});
    contribute(2, epoch, 0, {});
  }
  EXPECT_THAT(messages_to(step()), SizeIs(2 * kMost));
}

// Rank 1 holds blocks 1 and 3, rank 2 blocks 0 and 1, and this rank block 1, so no two runs have the same
// holders.
TEST_F(OneHopTest, RunsEndWhereTheirHoldersChange) {
  start(0);
  step();
  contribute(1, 0, 0b01010, {10, 20, 30, 40, 5, 6, 7, 8});
  contribute(2, 0, 0b00011, {1, 1, 1, 1, 100, 200, 300, 400});
  step();
  EXPECT_THAT(data(0), ElementsAre(1, 1, 1, 1, 111, 222, 333, 444, 0, 0, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0));
  EXPECT_EQ(started_[0]->operation.union_blocks, 3u);
}

// The last of the five blocks has three elements.
TEST_F(OneHopTest, WhereAllHaveAllBlocksTheWholeTensorIsSummed) {
  std::vector<float> own(19), sum(19);
  std::iota(own.begin(), own.end(), 1.0f);
  start(0, own);
  step();
  for (const int rank : {1, 2}) {
    Message m = message(0, 0b11111);
    m.record = HandMade::record(19);
    for (const float value : own) m.payload.push_back(value * (rank == 1 ? 100 : 10'000));
    fed_.feed(rank, Direction::up, m);
  }
  step();
  for (std::size_t i = 0; i < own.size(); ++i) sum[i] = own[i] * 10'101;
  EXPECT_EQ(data(0), sum);
  EXPECT_EQ(started_[0]->operation.union_blocks, 5u);
}

// Every rank lacks another block, so that every block has a holder and no rank has all of them.
TEST_F(OneHopTest, WhereBlocksLackOneRankEachTheOthersAreSummed) {
  std::vector<float> own(20, 1.0f);
  std::fill_n(own.begin(), 4, 0.0f);
  start(0, own);
  step();
  contribute(1, 0, 0b11101, std::vector<float>(16, 10.0f));
  contribute(2, 0, 0b11011, std::vector<float>(16, 100.0f));
  step();
  EXPECT_THAT(data(0), ElementsAre(110, 110, 110, 110, 101, 101, 101, 101, 11, 11, 11, 11, 111, 111, 111, 111,
                                   111, 111, 111, 111));
}

TEST_F(OneHopTest, WhoIsAheadIsTakenInOrder) {
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) contribute(1, epoch, 0b00100, {epoch + 1.0f, 0, 0, 0});
  step();
  EXPECT_FALSE(exchange_.idle());
  EXPECT_THAT(exchange_.waiting_for().known, HasSubstr("rank(s) 0, 2 did not join"));
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    start(epoch);
    contribute(2, epoch, 0, {});
    step();
    EXPECT_EQ(data(epoch)[8], epoch + 1.0f);
  }
  EXPECT_TRUE(exchange_.idle());
}

TEST_F(OneHopTest, TheRefusalOfTheLowestRankCounts) {
  Operation& op = start(0);
  step();
  for (const int rank : {1, 2}) {
    Message m = message(0, 0);
    m.header.flags |= wire::kRefused;
    m.header.refusal_code = static_cast<std::uint16_t>(ErrorCode::invalid_argument);
    const std::string_view text = rank == 1 ? "no such buffer" : "another reason";
    m.payload.resize(text.size() / sizeof(float) + 1);
    std::memcpy(m.payload.data(), text.data(), text.size());
    m.header.payload_bytes = static_cast<std::uint32_t>(text.size());
    fed_.feed(rank, Direction::up, m);
  }
  step();
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(op.failure()->text, "operation 0: rank 1 refused its request: no such buffer");
  EXPECT_THAT(fed_.failure(), IsEmpty()) << "the communicator goes on";
}

// What a peer may send instead of a contribution, and what is said about it.
struct Malformed {
  const char* name;
  std::function<void(Message&)> spoil;
  const char* text;
};

class OneHopMalformedTest : public OneHopTest, public testing::WithParamInterface<Malformed> {};

TEST_P(OneHopMalformedTest, IsRefusedByName) {
  Operation& op = start(0);
  step();
  Message m = message(0, 0b00010);
  m.payload = {1, 2, 3, 4};
  GetParam().spoil(m);
  contribute(2, 0, 0, {});
  fed_.feed(1, Direction::up, m);
  step();
  EXPECT_THAT(fed_.failure(), testing::AllOf(HasSubstr("rank 1"), HasSubstr(GetParam().text)));
  EXPECT_FALSE(op.finished());
}

INSTANTIATE_TEST_SUITE_P(
    , OneHopMalformedTest,
    testing::Values(
        Malformed{"magic", [](Message& m) { m.header.magic = 1; }, "magic number"},
        Malformed{"no_bitmap", [](Message& m) { m.header.flags = 0, m.bitmap = {}; }, "it has no bitmap"},
        Malformed{"offset", [](Message& m) { m.header.stream_offset = 4; },
                  "does not begin with its first byte"},
        Malformed{"sequence", [](Message& m) { m.header.sequence = 1; }, "it is out of order"},
        Malformed{"epoch", [](Message& m) { m.header.epoch = 1; }, "ranks disagree: operation 0"},
        Malformed{"slice", [](Message& m) { m.header.slice = 1; }, "there is no such slice"},
        Malformed{"more", [](Message& m) { m.header.flags |= wire::kMore; }, "more than one section"},
        Malformed{"count", [](Message& m) { m.record.count = 19; }, "ranks disagree about operation 0"},
        Malformed{"type", [](Message& m) { m.record.type = 200; }, "its element type does not exist"},
        Malformed{"address", [](Message& m) { m.record.output_address = ~std::uint64_t{0} - 7; },
                  "beyond all addresses"},
        Malformed{"bulk", [](Message& m) { m.header.epoch = 1, m.record.count = 1 << 20; },
                  "channels of another priority"},
        Malformed{"more_words", [](Message& m) { m.bitmap.push_back(0); }, "another length"},
        Malformed{"behind", [](Message& m) { m.bitmap = {1u << 5}; }, "bits behind the last block"},
        Malformed{"too_little", [](Message& m) { m.payload.pop_back(); }, "not as long as its bitmap says"},
        Malformed{"too_much", [](Message& m) { m.payload.push_back(1); }, "not as long as its bitmap says"}),

    [](const auto& malformed) { return malformed.param.name; });

TEST_F(OneHopTest, ADirectWriteIsRefused) {
  start(0);
  step();
  exchange_.direct_arrived(1, 0);
  EXPECT_THAT(fed_.failure(), HasSubstr("sums nothing for this rank"));
}

}  // namespace
}  // namespace nzcl::test
