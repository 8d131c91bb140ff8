// A dedicated aggregator of two ranks. The test writes the ranks' messages by hand: some come late, early or
// twice, and some are wrong.
#include "runtime/exchange/push/aggregator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "nzcl/error.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

class AggregatorTest : public testing::Test {
 protected:
  AggregatorTest() : fed_({.self = 2}), aggregator_(fed_.context(), Priority::express) {}

  /// The tensor has 20 floats in five blocks of 4, which are one express slice. The rank contributes
  /// `blocks`; every element of a block is `value` plus the number of the block.
  static Message contribution(std::uint64_t operation, const std::vector<int>& blocks, float value) {
    Message m;
    m.header.flags = wire::kHasBitmap;
    m.header.epoch = operation;
    m.header.sequence = operation;
    m.record.count = 20;
    m.record.block_elems = 4;
    m.bitmap = {0};
    for (const int b : blocks) {
      set_bit(std::span(m.bitmap), static_cast<std::uint64_t>(b));
      for (int i = 0; i < 4; ++i) m.payload.push_back(value + static_cast<float>(b));
    }
    return m;
  }
  void from(int rank, const Message& m) { fed_.feed(rank, Direction::up, m); }
  std::vector<HandFed::Sent> step_all() {
    while (aggregator_.step()) {
    }
    return fed_.take_sent();
  }
  /// Steps until nothing moves. Returns what was sent, without the writes that only return credits.
  std::vector<HandFed::Sent> step() {
    auto sent = step_all();
    std::erase_if(sent, [](const auto& s) { return s.immediate.kind == Immediate::Kind::credit; });
    return sent;
  }
  std::string failure_after(const std::function<void()>& feed) {
    feed();
    step();
    return fed_.failure();
  }

  HandFed fed_;
  Aggregator aggregator_;
};

TEST_F(AggregatorTest, SumsWhenAllHaveComeAndTellsBothTheSame) {
  from(1, contribution(0, {1, 2}, 10));
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_THAT(aggregator_.waiting_for().known, HasSubstr("rank(s) 0 did not join"));
  from(0, contribution(0, {2, 4}, 100));
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(2));
  for (const auto& s : sent) {
    EXPECT_EQ(s.immediate, (Immediate{Immediate::Kind::message, {2, Direction::down, Priority::express}, 0}));
    EXPECT_EQ(s.message.header.sequence, 0u);
    EXPECT_THAT(s.message.bitmap, ElementsAre(0b10110u));
    EXPECT_THAT(s.message.payload, ElementsAre(11, 11, 11, 11, 114, 114, 114, 114, 104, 104, 104, 104));
  }
  EXPECT_NE(sent[0].peer, sent[1].peer);
  EXPECT_TRUE(aggregator_.idle());
  EXPECT_EQ(aggregator_.waiting_for().known, "");
}

TEST_F(AggregatorTest, AllZeroCostsNoPayload) {
  from(0, contribution(0, {}, 0));
  from(1, contribution(0, {}, 0));
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_THAT(sent[0].message.payload, IsEmpty());
  EXPECT_THAT(sent[0].message.bitmap, ElementsAre(0u));
}

TEST_F(AggregatorTest, FutureOperationsWaitForTheirTurn) {
  from(0, contribution(0, {0}, 1));
  from(0, contribution(1, {0}, 2));
  from(0, contribution(2, {}, 0));
  EXPECT_THAT(step(), IsEmpty());
  from(1, contribution(0, {0}, 10));
  auto sent = step();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].message.header.epoch, 0u);
  EXPECT_THAT(sent[0].message.payload, ElementsAre(11, 11, 11, 11));
  from(1, contribution(1, {0}, 20));
  from(1, contribution(2, {}, 0));
  sent = step();
  ASSERT_THAT(sent, SizeIs(4));
  EXPECT_THAT(sent[0].message.payload, ElementsAre(22, 22, 22, 22));
  EXPECT_EQ(sent[2].message.header.epoch, 2u);
}

TEST_F(AggregatorTest, DataMayComeAfterItsBitmapInPieces) {
  Message first = contribution(0, {0, 1}, 1);
  const std::vector<float> payload = std::exchange(first.payload, {});
  from(0, first);
  from(1, contribution(0, {}, 0));
  EXPECT_THAT(step(), IsEmpty());
  Message piece;
  piece.header.flags = 0;
  piece.payload = {payload.begin(), payload.begin() + 2};  // ends in the middle of a block
  from(0, piece);
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_THAT(aggregator_.waiting_for().known, HasSubstr("rank(s) 0 stopped sending"));
  piece.header.stream_offset = 8;
  piece.payload = {payload.begin() + 2, payload.end()};
  from(0, piece);
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].message.payload, payload);
}

TEST_F(AggregatorTest, WithoutCreditTheResultWaits) {
  for (std::uint64_t operation = 0; operation < 5; ++operation) {  // the receivers have 4 slots
    from(0, contribution(operation, {}, 0));
    from(1, contribution(operation, {}, 0));
    EXPECT_THAT(step(), SizeIs(operation < 4 ? 2 : 0)) << operation;
  }
  EXPECT_FALSE(aggregator_.idle());
  EXPECT_EQ(aggregator_.waiting_for().known, "");
  EXPECT_EQ(
      aggregator_.waiting_for().all,
      "operation 4, allreduce(count 20, float32, sum, blocks of 4): rank(s) 1, 0 stopped taking results");
  for (std::uint16_t rank = 0; rank < 2; ++rank)
    EXPECT_TRUE(fed_.context().credit(Priority::express, wire::Direction::down, rank, 4));
  EXPECT_THAT(step(), SizeIs(2));
  EXPECT_TRUE(aggregator_.idle());
}

TEST_F(AggregatorTest, OneRanksCreditsDoNotHoldUpTheOthers) {
  const std::uint64_t slots = 4, most = slots + engine::kWaitingResults;
  std::uint16_t released = 0;
  for (std::uint64_t operation = 0; operation <= most; ++operation) {
    from(0, contribution(operation, {0}, 1));
    from(1, contribution(operation, {}, 0));
    const auto sent = step();
    if (operation == most) {
      EXPECT_THAT(sent, IsEmpty()) << "all buffers for results wait for rank 1";
      EXPECT_THAT(aggregator_.waiting_for().known, HasSubstr("rank(s) 1 stopped taking results"));
      break;
    }
    ASSERT_THAT(sent, SizeIs(operation < slots ? 2 : 1)) << operation;
    EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [](const auto& s) { return s.peer == 0; }), 1);
    EXPECT_TRUE(fed_.context().credit(Priority::express, wire::Direction::down, 0, ++released));
  }
  std::uint64_t next = slots;
  for (released = 4; next <= most; released = static_cast<std::uint16_t>(released + 4)) {
    EXPECT_TRUE(fed_.context().credit(Priority::express, wire::Direction::down, 1, released));
    for (const auto& s : step()) {
      if (s.peer == 0) continue;  // the last result, which rank 1 held up
      EXPECT_EQ(s.message.header.sequence, next++);
      EXPECT_THAT(s.message.payload, ElementsAre(1, 1, 1, 1));
    }
  }
  EXPECT_TRUE(aggregator_.idle());
  EXPECT_EQ(fed_.failure(), "");
}

TEST_F(AggregatorTest, ReturnsSlotsByCreditWrites) {
  for (std::uint64_t operation = 0; operation < 2; ++operation) from(0, contribution(operation, {}, 0));
  const auto sent = step_all();
  ASSERT_THAT(sent, SizeIs(1)) << "two of four slots are free again";
  EXPECT_EQ(sent[0].immediate,
            (Immediate{Immediate::Kind::credit, {2, Direction::up, Priority::express}, 2}));
  EXPECT_EQ(sent[0].peer, 0);
}

// --- Messages that are wrong, and must be refused

TEST_F(AggregatorTest, RanksThatDisagreeAreNamed) {
  for (const auto& [what, change] : std::vector<std::pair<std::string, std::function<void(Message&)>>>{
           {"count 24", [](Message& m) { m.record.count = 24; }},
           {"blocks of 5", [](Message& m) { m.record.block_elems = 5; }},
           {"int32", [](Message& m) { m.record.type = static_cast<std::uint8_t>(DataType::int32); }},
           {"max", [](Message& m) { m.record.op = static_cast<std::uint8_t>(ReduceOp::max); }},
           {"packed", [](Message& m) { m.record.packed_result = 1; }}}) {
    HandFed fed({.self = 2});
    Aggregator aggregator(fed.context(), Priority::express);
    fed.feed(0, Direction::up, contribution(0, {0}, 1));
    Message other = contribution(0, {0}, 1);
    change(other);
    fed.feed(1, Direction::up, other);
    aggregator.step();
    EXPECT_THAT(fed.failure(), AllOf(HasSubstr("ranks disagree about operation 0"), HasSubstr("on rank 0"),
                                     HasSubstr("on rank 1"), HasSubstr(what)));
    EXPECT_EQ(fed.context().failure->code, ErrorCode::mismatch);
    EXPECT_TRUE(fed.take_sent().empty());
  }
}

TEST_F(AggregatorTest, AnotherOperationWithTheSameSequenceIsAMismatch) {
  from(0, contribution(0, {0}, 1));
  Message other = contribution(5, {0}, 1);
  other.header.sequence = 0;
  EXPECT_THAT(failure_after([&] { from(1, other); }),
              AllOf(HasSubstr("operation 0"), HasSubstr("operation 5"), HasSubstr("rank 1")));
}

TEST_F(AggregatorTest, TheSameBitmapTwiceIsRefused) {
  from(0, contribution(0, {}, 1));
  EXPECT_THAT(failure_after([&] { from(0, contribution(0, {}, 1)); }),
              HasSubstr("rank 0 sent a bitmap that does not fit operation 0"));
}

TEST_F(AggregatorTest, PastAndFarFutureSequencesAreRefused) {
  from(0, contribution(0, {}, 1));
  from(1, contribution(0, {}, 1));
  step();
  EXPECT_THAT(failure_after([&] { from(1, contribution(0, {}, 1)); }),
              HasSubstr("rank 1 sent a malformed bitmap (sequence 0)"));
  HandFed fed({.self = 2});
  Aggregator aggregator(fed.context(), Priority::express);
  fed.feed(0, Direction::up, contribution(engine::kWindow, {}, 1));
  aggregator.step();
  EXPECT_THAT(fed.failure(), HasSubstr("malformed bitmap (sequence 16)"));
}

TEST_F(AggregatorTest, MalformedHeadersAreRefused) {
  for (const auto& change : std::vector<std::function<void(Message&)>>{
           [](Message& m) { m.header.magic = 0; }, [](Message& m) { m.header.version = 99; },
           [](Message& m) { m.header.payload_bytes = 512; },
           [](Message& m) { m.header.bitmap_bytes = 0xfffffff8; }, [](Message& m) { m.record.type = 200; },
           [](Message& m) { m.record.op = 4; }, [](Message& m) { m.record.block_elems = 0; },
           [](Message& m) { m.header.slice = 7; }, [](Message& m) { m.header.bitmap_bytes = 16; },
           [](Message& m) { m.record.count = 1 << 20; }}) {
    HandFed fed({.self = 2});
    Aggregator aggregator(fed.context(), Priority::express);
    Message m = contribution(0, {0}, 1);
    change(m);
    fed.feed(1, Direction::up, m);
    aggregator.step();
    EXPECT_THAT(fed.failure(), HasSubstr("rank 1 sent a"));
    EXPECT_TRUE(fed.take_sent().empty());
  }
}

TEST_F(AggregatorTest, LessDataThanTheBitmapSaysIsFoundOut) {
  Message liar = contribution(0, {0, 1}, 1);
  liar.payload.resize(4);
  from(0, liar);
  from(0, contribution(1, {0}, 1));
  from(1, contribution(0, {}, 1));
  EXPECT_THAT(failure_after([] {}), HasSubstr("rank 0 sent less data than its bitmap says (operation 0"));
}

TEST_F(AggregatorTest, CreditsForMessagesThatWereNeverSentAreRefused) {
  Message m = contribution(0, {}, 1);
  m.header.credit = 3;
  EXPECT_THAT(failure_after([&] { from(1, m); }), HasSubstr("rank 1 returned more credits"));
}

}  // namespace
}  // namespace nzcl::test
