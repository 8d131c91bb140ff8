// The merging exchange of one rank, with the other ranks played by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/merging/merging_exchange.h"
#include "tests/engine/partial_sum.h"

namespace nzcl::test {
namespace {

using engine::MergingExchange;
using engine::MergingPlan;
using engine::Operation;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

TEST(MergingPlanTest, EveryRankMeetsTheSameInBothDirections) {
  for (int ranks = 2; ranks < 40; ++ranks) {
    const MergingPlan plan(ranks);
    for (int a = 0; a < ranks; ++a) {
      int partners = 0;
      for (int b = 0; b < ranks; ++b) {
        if (a == b) continue;
        if (plan.meet(a, b)) ++partners;
        EXPECT_EQ(plan.meet(a, b), plan.meet(b, a)) << ranks << ": " << a << ", " << b;
      }
      EXPECT_EQ(partners, plan.partners(a)) << ranks << ": " << a;
      if (!plan.gives(a)) {
        EXPECT_EQ(plan.rank_at(plan.place_of(a)), a);
      }
    }
  }
}

TEST(MergingPlanTest, TheSumsOfAllRanksComeTogetherEverywhere) {
  for (int ranks = 2; ranks < 64; ++ranks) {
    const MergingPlan plan(ranks);
    std::vector<std::uint64_t> held(static_cast<std::size_t>(ranks));
    const auto of = [&](int r) -> std::uint64_t& { return held[static_cast<std::size_t>(r)]; };
    for (int r = 0; r < ranks; ++r) of(r) = 1ull << r;
    for (int r = 0; r < ranks; ++r) {
      if (plan.gives(r)) of(r - 1) |= of(r);
    }
    for (int round = 0; round < plan.rounds(); ++round) {
      const auto before = held;
      for (int r = 0; r < ranks; ++r) {
        if (plan.gives(r)) continue;
        const std::uint64_t theirs = before[static_cast<std::size_t>(plan.partner(r, round))];
        EXPECT_EQ(of(r) & theirs, 0u) << "nothing is added twice";
        EXPECT_EQ(std::countr_zero(theirs) < std::countr_zero(of(r)), plan.partner(r, round) < r);
        of(r) |= theirs;
      }
    }
    for (int r = 0; r < ranks; ++r) {
      if (!plan.gives(r)) {
        EXPECT_EQ(std::popcount(of(r)), ranks);
      }
    }
  }
}

class MergingTest : public testing::Test {
 protected:
  explicit MergingTest(int self = 0, int workers = 4)
      : fed_({.self = self,
              .workers = workers,
              .dedicated = 0,
              .slot_bytes = 2048,
              .tile_block_bytes = 64,
              .merging = true}),
        exchange_(fed_.context()) {}

  /// Starts an operation to which this rank contributes 1, 2, 3, 4 at elements 4 to 7.
  Operation& start(std::uint64_t epoch, const char* refusal = nullptr) {
    std::vector<float> data(20, 0.0f);
    if (refusal == nullptr) std::iota(data.begin() + 4, data.begin() + 8, 1.0f);
    started_.push_back(std::make_unique<HandMade>(fed_, epoch, std::move(data), merging_record()));
    Operation& op = started_.back()->operation;
    if (refusal != nullptr) {
      const auto self = static_cast<std::uint16_t>(fed_.context().config.members.self);
      op.refusal = std::make_unique<wire::Refusal>(self, std::uint16_t{1}, refusal);
      op.set_no_input();
    }
    exchange_.submit(op);
    return op;
  }
  void feed(int rank, const PartialSum& sum) {
    fed_.feed_bytes(rank, Direction::up, Priority::merging, sum.bytes());
  }
  std::vector<HandFed::Sent> step() { return fed_.run(exchange_); }
  /// What the first tile of a message says.
  static std::vector<float> values_of(const HandFed::Sent& sent) {
    const auto& payload = sent.message.payload;
    const auto bits = std::bit_cast<std::uint32_t>(payload.at(0));
    const auto count = static_cast<long>(wire::TileDescriptor::decode(bits)->count);
    return {payload.begin() + 1, payload.begin() + 1 + count};
  }
  std::string reason_of(const HandFed::Sent& sent) {
    std::string text(sent.message.header.payload_bytes / 4 * 4, ' ');
    std::memcpy(text.data(), sent.message.payload.data(), text.size());
    return text;
  }

  HandFed fed_;
  MergingExchange exchange_;
  std::vector<std::unique_ptr<HandMade>> started_;
};

TEST_F(MergingTest, EachRoundSendsWhatTheOneBeforeHasMerged) {
  Operation& op = start(0);
  auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 1);
  EXPECT_EQ(sent[0].immediate,
            (Immediate{Immediate::Kind::message, {0, Direction::up, Priority::merging}, 0}));
  EXPECT_THAT(values_of(sent[0]), ElementsAre(1, 2, 3, 4));
  feed(2, PartialSum(0, {7, 19}, {1000, 5}));  // the next round's may come first
  EXPECT_THAT(step(), IsEmpty());
  feed(1, PartialSum(0, {0, 5}, {9, 10}));
  sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 2);
  EXPECT_THAT(values_of(sent[0]), ElementsAre(9, 1, 12, 3, 4));
  EXPECT_TRUE(op.finished());
  EXPECT_TRUE(exchange_.idle());
  std::vector<float> expected(20, 0.0f);
  expected[0] = 9, expected[4] = 1, expected[5] = 12, expected[6] = 3, expected[7] = 1004, expected[19] = 5;
  EXPECT_EQ(started_[0]->data, expected);
  EXPECT_EQ(op.union_blocks.load(), 6u);
}

/// Blocks of 3, of which the last one has 2 elements. This rank has blocks 1 and 2, in which there are zeros.
TEST_F(MergingTest, BlocksAreMergedAsAWhole) {
  std::vector<float> data(20, 0.0f);
  std::iota(data.begin() + 4, data.begin() + 8, 1.0f);
  HandMade made(fed_, 0, data, merging_record(3));
  exchange_.submit(made.operation);
  const auto of_block = [](std::vector<std::uint16_t> blocks, std::vector<float> values) {
    PartialSum sum(0, std::move(blocks), std::move(values));
    sum.record = merging_record(3);
    return sum;
  };
  auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(values_of(sent[0]), ElementsAre(0, 1, 2, 3, 4, 0));
  feed(1, of_block({6}, {5, 6}));
  sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(values_of(sent[0]), ElementsAre(0, 1, 2, 3, 4, 0, 5, 6));
  feed(2, of_block({2, 6}, {10, 10, 10, 20, 20}));
  step();
  ASSERT_TRUE(made.operation.finished());
  EXPECT_THAT(made.data, ElementsAre(0, 0, 0, 0, 1, 2, 13, 14, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 25, 26));
  EXPECT_EQ(made.operation.input_blocks.load(), 2u);
  EXPECT_EQ(made.operation.union_blocks.load(), 3u);
}

TEST_F(MergingTest, MessagesThatWaitToBeMergedAreBounded) {
  for (std::uint64_t epoch = 0; epoch < engine::kMaxOperations; ++epoch) start(epoch);
  std::size_t sections = 0;
  for (const auto& sent : step()) sections += 1 + sent.more.size();
  EXPECT_LT(sections, engine::kMaxOperations) << "not all of them, because nothing has come back";
  EXPECT_GT(sections, 1u);
}

TEST_F(MergingTest, ARefusalTakesTheSumsPlaceInEachRound) {
  Operation& op = start(0);
  step();
  feed(1, PartialSum::refusal(0, 1, "nope"));
  auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 2);
  EXPECT_EQ(sent[0].message.header.flags, wire::kHasBitmap | wire::kRefused);
  EXPECT_EQ(sent[0].message.header.refused_by, 1);
  feed(2, PartialSum::refusal(0, 3, "never"));
  step();
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(op.failure()->text, "operation 0: rank 1 refused its request: nope");
  EXPECT_EQ(fed_.failure(), "");
}

TEST_F(MergingTest, OwnRefusalIsToldAndOthersTilesAreDropped) {
  Operation& op = start(0, "mine");
  auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(reason_of(sent[0]), "mine");
  feed(1, PartialSum(0, {3}, {7}));
  feed(2, PartialSum(0, {3}, {7}));
  sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].message.header.refused_by, 0);
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(op.failure()->text, "operation 0: rank 0 refused its request: mine");
}

TEST_F(MergingTest, SaysForWhomItWaits) {
  start(0);
  step();
  EXPECT_THAT(exchange_.waiting_for().known, HasSubstr("rank(s) 1 did not join"));
  EXPECT_THAT(exchange_.waiting_for().suspected, HasSubstr("rank 2 (operation 0, slice 0)"));
  feed(1, PartialSum(0, {0}, {9}));
  step();
  EXPECT_EQ(exchange_.waiting_for().known, "");
  EXPECT_THAT(exchange_.waiting_for().suspected, HasSubstr("rank 2"));
}

TEST_F(MergingTest, ARankWhoseFirstSliceHasComeHasJoined) {
  HandMade made(fed_, 0, std::vector<float>(100000), merging_record());
  const engine::SliceLayout& layout = made.operation.layout;
  ASSERT_GT(layout.slices(), 1u);
  exchange_.submit(made.operation);
  step();
  PartialSum first(0, {}, {});
  first.record.count = made.data.size();
  first.header.tiles = static_cast<std::uint32_t>(layout.tiles_of(0));
  for (std::uint32_t t = 1; t < first.header.tiles; ++t) append_bytes(first.tail, first.descriptor.encode());
  feed(1, first);
  step();
  EXPECT_EQ(fed_.failure(), "");
  EXPECT_EQ(exchange_.waiting_for().known, "");
  EXPECT_THAT(exchange_.waiting_for().suspected, HasSubstr("rank 1 (operation 0, slice 1)"));
}

TEST_F(MergingTest, KnowsThatOthersWaitForThisRank) {
  feed(1, PartialSum(0, {0}, {9}));
  step();
  EXPECT_FALSE(exchange_.idle());
  EXPECT_THAT(exchange_.waiting_for().known, HasSubstr("rank(s) 0 did not join"));
}

/// Rank 1 of 3 gives its contribution to rank 0.
struct GiverTest : MergingTest {
  GiverTest() : MergingTest(1, 3) {}
};
TEST_F(GiverTest, GivesItsContributionAndGetsTheResult) {
  Operation& op = start(0);
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 0);
  feed(0, PartialSum(0, {4, 9}, {70, 80}));
  step();
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(started_[0]->data[4], 70);
  EXPECT_EQ(started_[0]->data[9], 80);
}
TEST_F(GiverTest, IsToldOfARefusal) {
  Operation& op = start(0);
  step();
  feed(0, PartialSum::refusal(0, 2, "no"));
  step();
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(op.failure()->text, "operation 0: rank 2 refused its request: no");
}

/// A taker that gives no credits back, so that the giver cannot compose all of its contributions, and answers
/// all the same. The first answer to an operation that was not contributed to fails the communicator: it
/// would overwrite input that is still to be sent, and end an operation that the giver would still read.
struct EarlyAnswerTest : GiverTest {
  /// Answers operation after operation until that fails. Returns the first one that was not answered.
  std::uint64_t answer(const std::function<PartialSum(std::uint64_t)>& answer_to) {
    for (std::uint64_t epoch = 0; epoch < kOperations; ++epoch) {
      started_.push_back(
          std::make_unique<HandMade>(fed_, epoch, std::vector<float>(kElements, 1.0f), merging_record()));
      exchange_.submit(started_.back()->operation);
    }
    step();
    for (std::uint64_t epoch = 0; epoch < kOperations; ++epoch) {
      PartialSum sum = answer_to(epoch);
      sum.record.count = kElements;
      feed(0, sum);
      step();
      if (!started_[epoch]->operation.finished()) return epoch;
    }
    return kOperations;
  }
  static constexpr std::uint64_t kOperations = engine::kMaxOperations;
  static constexpr std::size_t kElements = 100;  // so many that the slots do not hold all contributions
};
TEST_F(EarlyAnswerTest, FailsTheCommunicatorByName) {
  const std::uint64_t early = answer([](std::uint64_t epoch) { return PartialSum(epoch, {4}, {70}); });
  ASSERT_LT(early, kOperations);
  ASSERT_GT(early, 0u) << "some were contributed to";
  EXPECT_EQ(fed_.failure(), "rank 0 sent a partial sum of operation " + std::to_string(early) +
                                " slice 0 that can't be: it is there before this rank has sent its part");
  EXPECT_EQ(started_[early]->data[4], 1) << "the input is still to be sent";
}
TEST_F(EarlyAnswerTest, FailsTheCommunicatorByNameAlsoIfItIsARefusal) {
  const std::uint64_t early = answer([](std::uint64_t epoch) { return PartialSum::refusal(epoch, 2, "no"); });
  ASSERT_LT(early, kOperations);
  EXPECT_THAT(fed_.failure(), HasSubstr("it is there before this rank has sent its part"));
}

/// Rank 0 of 3 takes rank 1's contribution, and sends it the result.
struct TakerTest : MergingTest {
  TakerTest() : MergingTest(0, 3) {}
};
TEST_F(TakerTest, MergesBeforeTheRoundsAndSendsTheResult) {
  Operation& op = start(0);
  EXPECT_THAT(step(), IsEmpty()) << "what it sends has the giver's part in it";
  feed(1, PartialSum(0, {4}, {10}));
  auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 2);
  EXPECT_THAT(values_of(sent[0]), ElementsAre(11, 2, 3, 4));
  feed(2, PartialSum(0, {4}, {100}));
  sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 1);
  EXPECT_THAT(values_of(sent[0]), ElementsAre(111, 2, 3, 4));
  EXPECT_TRUE(op.finished());
}

// --- Peers that send anything

/// What is said of a message from rank 1, changed in this way.
std::string refusal_of(const std::function<void(PartialSum&)>& change, std::uint64_t block = 1) {
  HandFed fed(
      {.self = 0, .workers = 4, .dedicated = 0, .slot_bytes = 2048, .tile_block_bytes = 64, .merging = true});
  MergingExchange exchange(fed.context());
  HandMade op(fed, 0, std::vector<float>(20, 1.0f), merging_record(block));
  // As the lane does when it takes the operation.
  engine::agree(fed.context(), 0, 0, op.operation.record, nullptr);
  exchange.submit(op.operation);
  fed.run(exchange);
  PartialSum sum(0, {3, 5}, {1, 2});
  sum.record = merging_record(block);
  change(sum);
  fed.feed_bytes(1, Direction::up, Priority::merging, sum.bytes());
  fed.run(exchange);
  EXPECT_FALSE(op.operation.finished());
  return fed.failure();
}

TEST(HostileMerging, WhatCannotBeIsRefusedByName) {
  const auto refused = [](const std::function<void(PartialSum&)>& change, const char* why) {
    const std::string text = refusal_of(change);
    EXPECT_THAT(text, HasSubstr(why));
    EXPECT_THAT(text, HasSubstr("rank 1"));
  };
  refused([](PartialSum& s) { s.header.magic = 1; }, "magic number");
  refused([](PartialSum& s) { s.header.version = 1; }, "another version");
  refused([](PartialSum& s) { s.header.flags |= wire::kBatch; }, "unknown flags");
  refused([](PartialSum& s) { s.header.payload_bytes = 1 << 20; }, "longer than its slot");
  refused([](PartialSum& s) { s.header.flags |= wire::kMore; }, "magic number");
  refused([](PartialSum& s) { s.header.flags = wire::kTiles; }, "a record belongs into");
  refused([](PartialSum& s) { s.header.stream_offset = 1; }, "a record belongs into");
  refused([](PartialSum& s) { s.record.type = 99; }, "element type does not exist");
  refused([](PartialSum& s) { s.record.algorithm = static_cast<wire::Algorithm>(9); },
          "algorithm does not exist");
  refused([](PartialSum& s) { s.record.value_rule = wire::ValueRule::float16; },
          "cannot be coded in that way");
  refused([](PartialSum& s) { s.record.algorithm = wire::Algorithm::push; }, "disagree");
  refused([](PartialSum& s) { s.record.op = 2; }, "disagree");
  refused([](PartialSum& s) { s.record.count = 21; }, "disagree");
  refused([](PartialSum& s) { s.header.epoch = 1; }, "of another slice");
  refused([](PartialSum& s) { s.header.slice = 1; }, "of another slice");
  refused([](PartialSum& s) { s.header.sequence = 1; }, "of another slice");
  refused([](PartialSum& s) { s.header.tiles = 2; }, "not so many tiles");
  refused(
      [](PartialSum& s) {
        s = PartialSum(0, {}, {});
        s.descriptor.count = 1;  // one more empty tile than there is
      },
      "its section has not so many tiles");
  refused([](PartialSum& s) { s.header.tiles = 0; }, "contradict");
  refused([](PartialSum& s) { s.header.flags = wire::kHasBitmap, s.header.tiles = 0; }, "exchanged in tiles");
  refused([](PartialSum& s) { s.descriptor.count = 21; }, "counts elements that its code cannot have");
  refused([](PartialSum& s) { s.descriptor.value = wire::ValueCode::float16; }, "coded values");
  refused([](PartialSum& s) { s.descriptor.count = 20; }, "longer than its message");
  refused([](PartialSum& s) { s = PartialSum::list(0, 20, 1, {3, 5}, {1, 2}); }, "not in lists");
  refused([](PartialSum& s) { s.offsets = {5, 3}; }, "index set is malformed");
  refused([](PartialSum& s) { s.offsets = {5, 20}; }, "index set is malformed");
  refused([](PartialSum& s) { s = PartialSum::refusal(0, 9, "no"); }, "rank that does not exist");
  refused([](PartialSum& s) { s = PartialSum::refusal(0, 1, "no"), s.header.refusal_code = 999; },
          "error code does not exist");
  refused([](PartialSum& s) { s = PartialSum::refusal(0, 1, "no"), s.record.count = 21; }, "disagree");
}

/// The tensor has six whole blocks of 3, and one of 2 elements.
TEST(HostileMerging, PartsOfBlocksAreRefused) {
  const auto with = [](std::vector<std::uint16_t> blocks, std::size_t values) {
    return refusal_of(
        [&](PartialSum& s) {
          s = PartialSum(0, blocks, std::vector<float>(values, 1.0f));
          s.record = merging_record(3);
        },
        3);
  };
  EXPECT_EQ(with({1}, 3), "");
  EXPECT_EQ(with({0, 6}, 5), "");
  EXPECT_THAT(with({1}, 4), HasSubstr("parts of blocks"));
  EXPECT_THAT(with({1}, 2), HasSubstr("index set is malformed"));
  EXPECT_THAT(with({0, 6}, 6), HasSubstr("index set is malformed"));
  EXPECT_THAT(with({7}, 3), HasSubstr("index set is malformed"));
}

TEST(HostileMerging, DirectWritesAreRefused) {
  HandFed fed(
      {.self = 0, .workers = 2, .dedicated = 0, .slot_bytes = 2048, .tile_block_bytes = 64, .merging = true});
  MergingExchange exchange(fed.context());
  exchange.direct_arrived(1, 0);
  EXPECT_EQ(fed.failure(), "rank 1 announced a direct write, but sums nothing for this rank");
}

}  // namespace
}  // namespace nzcl::test
