// A rank's half of the switch exchange, fed by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <deque>

#include "runtime/switch/slot_worker.h"
#include "tests/engine/switch_packets.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerTest : public ::testing::Test {
 protected:
  std::optional<Header> next(Time now) {
    alignas(8) std::array<std::byte, 256> buffer;
    const std::size_t bytes = worker->next_packet(buffer, now);
    if (bytes == 0) return std::nullopt;
    const auto opened = open(std::span(buffer).first(bytes), kJob);
    EXPECT_TRUE(opened);
    return opened->header;
  }
  void answer(std::uint32_t round, std::uint32_t piece, std::uint32_t next,
              const std::vector<std::int32_t>& values, Time now, std::uint8_t flags = 0) {
    Header h = contribution(kAggregatorRank, round, piece, next);
    h.kind = Kind::result;
    h.shape = 77;
    h.next_exponent = static_cast<std::uint8_t>(next % 200);
    h.flags = flags;
    worker->receive(packet(h, values), now);
  }
  void waiting(std::uint32_t round, Time now, std::uint8_t flags = 0) {
    Header h = contribution(0, round, 1, 0);
    h.kind = Kind::waiting;
    h.flags = flags;
    if (flags & kAbsent) h.blocks = cause_of(h.slot, round);
    worker->receive(packet(h), now);
  }
  void absent(std::uint32_t round, Time now) { waiting(round, now, kAbsent); }
  static std::unique_ptr<SlotWorker> fresh() {
    return std::make_unique<SlotWorker>(Pool{2, 1, 4, kJob}, 1, 2);
  }
  std::unique_ptr<SlotWorker> worker = fresh();
  MemoryTensor tensor{{1, 2, 3, 4, 0, 0, 0, 0, 9, 9}, {4, 4}, 1};
};

TEST_F(WorkerTest, LooksAheadAndSendsOnlyWhatItHolds) {
  worker->submit(tensor);
  auto h = next(0s);
  ASSERT_TRUE(h);
  EXPECT_EQ(h->piece, kNoPiece);
  EXPECT_EQ(h->next, 0u);
  EXPECT_FALSE(next(0s));
  answer(0, kNoPiece, 0, {}, 1us);
  h = next(1us);
  EXPECT_EQ(h->piece, 0u);
  EXPECT_EQ(h->next, 2u);
  EXPECT_EQ(h->flags, kHasValues);
  answer(1, 0, 1, {2, 4, 6, 8}, 2us);  // another rank holds piece 1
  h = next(2us);
  EXPECT_EQ(h->piece, 1u);
  EXPECT_EQ(h->next, 2u);
  EXPECT_EQ(h->flags, 0);
  answer(2, 1, 2, {7, 7, 7, 7}, 3us);
  h = next(3us);
  EXPECT_EQ(h->piece, 2u);
  EXPECT_EQ(h->next, kNoPiece);
  answer(3, 2, kNoPiece, {18, 18}, 4us);
  EXPECT_TRUE(worker->idle());
  EXPECT_TRUE(tensor.done());
  EXPECT_THAT(tensor.output, ElementsAre(2, 4, 6, 8, 7, 7, 7, 7, 18, 18));
}

TEST_F(WorkerTest, RepeatsAfterTheTimeoutAndLessAndLessOften) {
  worker->submit(tensor);
  next(0s);
  std::vector<Time> repeated;
  for (Time now{}; now < 3s; now += kTick) {
    worker->advance(now);
    if (next(now)) repeated.push_back(now);
  }
  ASSERT_GE(repeated.size(), 8u);
  ASSERT_LE(repeated.size(), 24u);
  EXPECT_NEAR(static_cast<double>(repeated[0].count()), 1e7, 1e6);
  EXPECT_GT(repeated[2] - repeated[1], 1.5 * (repeated[1] - repeated[0]));
  const Time last = repeated.back() - repeated[repeated.size() - 2];
  EXPECT_LE(last, kMostBackoff + 2 * kTick);
  EXPECT_EQ(worker->repeated(), repeated.size());
}

TEST_F(WorkerTest, AResultThatCrossesItsRepetitionIsTakenOnce) {
  worker->submit(tensor);
  next(0s);
  worker->advance(20ms);  // due again
  answer(0, kNoPiece, 0, {}, 20ms);
  answer(0, kNoPiece, 0, {}, 20ms);
  const auto h = next(20ms);
  ASSERT_TRUE(h);
  EXPECT_EQ(h->round, 1u);
  EXPECT_FALSE(next(20ms));
}

TEST_F(WorkerTest, ATimeoutAsksAndOnlyWhatIsAbsentIsSentAgain) {
  worker->submit(tensor);
  next(0s);
  answer(0, kNoPiece, 0, {}, 10us);
  EXPECT_EQ(next(10us)->flags, kHasValues);
  worker->advance(20ms);
  const auto question = next(20ms);
  ASSERT_TRUE(question);
  EXPECT_EQ(question->kind, Kind::question);
  absent(1, 20ms + 10us);
  const auto again = next(20ms + 10us);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->kind, Kind::contribution);
  EXPECT_EQ(again->flags, kHasValues);
  EXPECT_EQ(worker->round_trip(), 0s) << "nobody knows which packet was answered";
}

TEST_F(WorkerTest, WhatWasSaidBeforeAContributionCameIsIgnored) {
  worker->submit(tensor);
  next(0s);
  answer(0, kNoPiece, 0, {}, 10us);
  EXPECT_EQ(next(10us)->round, 1u);
  absent(1, 20us);
  EXPECT_FALSE(next(20us)) << "this rank has not asked";
  Header h = contribution(0, 1, 1, 0);
  h.kind = Kind::waiting;
  h.flags = kAbsent;
  h.blocks = cause_of(0, 0);
  worker->receive(packet(h), 30us);
  EXPECT_FALSE(next(30us)) << "the opening packet was sent before";
}

TEST_F(WorkerTest, WhoIsToldThatTheNextRoundLacksItAsksForItsResult) {
  worker->submit(tensor);
  absent(0, 0s);
  EXPECT_EQ(next(0s)->round, 0u);
  answer(0, kNoPiece, 0, {}, 10us);
  EXPECT_EQ(next(10us)->round, 1u);
  absent(4, 30us);
  EXPECT_FALSE(next(30us)) << "no rank can be in this round";
  absent(2, 30us);
  const auto question = next(30us);
  ASSERT_TRUE(question);
  EXPECT_EQ(question->kind, Kind::question);
  EXPECT_EQ(question->round, 1u);
  answer(1, 0, 2, {1, 2, 3, 4}, 40us);
  EXPECT_EQ(next(40us)->round, 2u);
}

TEST_F(WorkerTest, WaitingForOthersIsNotTakenForARoundTrip) {
  worker->submit(tensor);
  next(0s);
  answer(0, kNoPiece, 0, {}, 10us);
  next(10us);
  worker->advance(20ms);
  ASSERT_EQ(next(20ms)->kind, Kind::question);
  waiting(1, 20ms + 10us);
  EXPECT_EQ(worker->round_trip(), 10us);
  waiting(1, 20ms + 20us);
  EXPECT_EQ(worker->round_trip(), 10us) << "a copy";
  answer(1, 0, 2, {1, 2, 3, 4}, 5s);
  EXPECT_EQ(worker->round_trip(), 10us);
}

/// How many packets of a rank are under way together, whose window has room for two full ones, if it holds
/// one block of eight in every piece and results have these blocks. Each 10 us the oldest packet is answered.
std::size_t most_under_way(std::uint64_t result_blocks) {
  constexpr std::uint32_t kSlots = 32, kPieces = 256, kBlock = 8, kPiece = 8 * kBlock;
  SlotWorker worker(Pool{2, kSlots, kPiece, kJob, false, 2}, 1, 1);
  std::vector<std::int32_t> input(std::size_t{kPiece} * kPieces);
  for (std::size_t p = 0; p < kPieces; ++p) input[kPiece * p] = 1;
  MemoryTensor tensor{input, {kPiece, kBlock}, kSlots};
  worker.submit(tensor);
  std::deque<Header> under_way;
  std::size_t most = 0, answers = 0;
  for (Time now{}; !worker.idle() && answers < 2 * kPieces; now += 10us) {
    alignas(8) std::array<std::byte, sizeof(Header) + kPiece * sizeof(std::int32_t)> buffer;
    while (const std::size_t bytes = worker.next_packet(buffer, now))
      under_way.push_back(open(std::span(buffer).first(bytes), kJob)->header);
    if (answers > kPieces) most = std::max(most, under_way.size());
    Header h = under_way.front();
    under_way.pop_front();
    const bool opening = h.piece == kNoPiece;
    h.kind = Kind::result;
    h.rank = kAggregatorRank;
    h.flags = 0;
    h.blocks = opening ? 0 : result_blocks;
    worker.receive(packet(h, std::vector<std::int32_t>(opening ? 0 : kBlock * std::popcount(result_blocks))),
                   now + 5us);
    ++answers;
  }
  EXPECT_TRUE(worker.idle()) << worker.failure();
  return most;
}

TEST(SlotWorker, HowManyShortPacketsAreUnderWayDependsOnTheLengthOfResults) {
  EXPECT_LE(most_under_way(0xff), 3u);
  EXPECT_GE(most_under_way(0x01), 6u);
}

TEST_F(WorkerTest, ResultsThatCannotBeFail) {
  const auto text = [&](auto give) {
    MemoryTensor own{{1, 2, 3, 4, 0, 0, 0, 0, 9, 9}, {4, 4}, 1};
    worker = fresh();
    worker->submit(own);
    next(0s);
    give();
    return worker->failure();
  };
  EXPECT_THAT(text([&] { answer(0, 0, 0, {}, 1us); }), HasSubstr("cannot be"));
  EXPECT_THAT(text([&] { answer(0, kNoPiece, 1, {}, 1us); }), HasSubstr("cannot be"))
      << "this rank has piece 0";
  EXPECT_THAT(text([&] { answer(0, kNoPiece, kNoPiece, {}, 1us); }), HasSubstr("cannot be"));
  EXPECT_THAT(text([&] { answer(0, kNoPiece, 0, {1, 2, 3, 4}, 1us); }), HasSubstr("cannot be"));
  const auto second = [&](auto give) {
    return text([&] {
      answer(0, kNoPiece, 0, {}, 1us);
      next(1us);
      give();
    });
  };
  EXPECT_EQ(second([&] { answer(1, 0, 2, {1, 2, 3, 4}, 2us); }), "");
  EXPECT_THAT(second([&] { answer(1, 0, 2, {1, 2, 3}, 2us); }), HasSubstr("cannot be"));
  EXPECT_THAT(second([&] { answer(1, 0, 2, {}, 2us); }), HasSubstr("cannot be"));
  EXPECT_THAT(second([&] { answer(1, 0, 3, {1, 2, 3, 4}, 2us); }), HasSubstr("cannot be"));
  EXPECT_THAT(second([&] { answer(1, 0, 0, {1, 2, 3, 4}, 2us); }), HasSubstr("cannot be"));
  EXPECT_THAT(second([&] {
                answer(1, 0, 2, {1, 2, 3, 4}, 2us, kClamped);
              }),
              HasSubstr("beyond the exponent"));
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
