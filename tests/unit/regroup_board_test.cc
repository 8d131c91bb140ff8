// Members agree who is left, whoever dies and when.
#include "runtime/bootstrap/regroup_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/rank_names.h"

namespace nzcl::bootstrap {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Stage = RegroupState::Stage;
using Kind = RegroupVerdict::Kind;

class RegroupBoardTest : public testing::Test {
 protected:
  static RegroupState ready(std::vector<int> leave_out = {}) {
    RegroupState state;
    state.stage = Stage::ready;
    state.wish.leave_out = std::move(leave_out);
    return state;
  }
  static RegroupState late() {
    RegroupState state = ready();
    state.late = true;
    return state;
  }
  static RegroupState in(Stage stage, std::uint64_t attempt, std::vector<int> members) {
    RegroupState state;
    state.stage = stage;
    state.attempt = attempt;
    state.members = std::move(members);
    if (stage == Stage::failed) state.failure = {ErrorCode::system, "no memory"};
    return state;
  }
  RegroupBoard board{test::rank_names(4), {}};
};

TEST_F(RegroupBoardTest, WaitsForAllThatLiveAndCommitsWhenAllHaveJoined) {
  board.gone(1, true);
  board.said(0, ready());
  board.said(2, ready());
  EXPECT_THAT(board.decide(), IsEmpty());
  board.said(3, ready());
  const auto begin = board.decide();
  ASSERT_THAT(begin, SizeIs(1));
  EXPECT_EQ(begin[0].frame.verdict.kind, Kind::begin);
  EXPECT_THAT(begin[0].frame.verdict.members, ElementsAre(0, 2, 3));
  EXPECT_THAT(begin[0].to, ElementsAre(0, 2, 3));
  for (const std::size_t i : {0u, 2u}) board.said(i, in(Stage::built, 1, {0, 2, 3}));
  EXPECT_THAT(board.decide(), IsEmpty());
  board.said(3, in(Stage::built, 1, {0, 2, 3}));
  const auto commit = board.decide();
  ASSERT_THAT(commit, SizeIs(1));
  EXPECT_EQ(commit[0].frame.verdict.kind, Kind::commit);
  EXPECT_THAT(commit[0].to, ElementsAre(0, 2, 3));
  EXPECT_THAT(board.decide(), IsEmpty());
}

TEST_F(RegroupBoardTest, WhatWasSentBeforeACommitDoesNotRevokeIt) {
  for (std::size_t i = 0; i < 4; ++i) board.said(i, ready());
  ASSERT_THAT(board.decide(), SizeIs(1));
  for (std::size_t i = 0; i < 4; ++i) board.said(i, in(Stage::built, 1, {0, 1, 2, 3}));
  ASSERT_THAT(board.decide(), SizeIs(1));
  for (std::size_t i = 0; i < 3; ++i) board.gone(i, true);
  board.said(3, in(Stage::built, 1, {0, 1, 2, 3}));
  EXPECT_THAT(board.decide(), IsEmpty());
}

TEST_F(RegroupBoardTest, ADeathClosesTheAttemptAndAnotherOneFollows) {
  for (std::size_t i = 0; i < 4; ++i) board.said(i, ready());
  ASSERT_THAT(board.decide(), SizeIs(1));
  board.said(0, in(Stage::built, 1, {0, 1, 2, 3}));
  board.said(1, in(Stage::failed, 1, {0, 1, 2, 3}));
  EXPECT_THAT(board.decide(), IsEmpty()) << "a death may explain it";
  board.gone(2, true);
  const auto again = board.decide();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].frame.verdict.kind, Kind::again);
  EXPECT_THAT(again[0].to, ElementsAre(0, 1, 3));
  for (const std::size_t i : {0u, 1u, 3u}) {
    RegroupState state = ready();
    state.attempt = 1;
    board.said(i, state);
  }
  const auto begin = board.decide();
  ASSERT_THAT(begin, SizeIs(1));
  EXPECT_EQ(begin[0].frame.verdict.attempt, 2u);
  EXPECT_THAT(begin[0].frame.verdict.members, ElementsAre(0, 1, 3));
}

TEST_F(RegroupBoardTest, AFailureThatNoDeathExplainsIsOneForAll) {
  for (std::size_t i = 0; i < 4; ++i) board.said(i, ready());
  ASSERT_THAT(board.decide(), SizeIs(1));
  board.said(2, in(Stage::failed, 1, {0, 1, 2, 3}));
  EXPECT_THAT(board.decide(), IsEmpty());
  ASSERT_EQ(board.unexplained(), 1u);
  board.nothing_explains(1);
  const auto refused = board.decide();
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].frame.verdict.kind, Kind::refuse);
  EXPECT_THAT(refused[0].to, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(refused[0].frame.verdict.failure.text, "rank 2: no memory");
  EXPECT_EQ(board.unexplained(), std::nullopt);
}

TEST_F(RegroupBoardTest, WhoDoesNotCallInTimeIsLeftOutAlsoLater) {
  for (const std::size_t i : {0u, 1u}) board.said(i, ready());
  board.said(2, late());
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(2));
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::leave_out);
  EXPECT_THAT(orders[0].to, ElementsAre(3));
  EXPECT_THAT(orders[1].frame.verdict.members, ElementsAre(0, 1, 2));
  for (const std::size_t i : {0u, 1u, 2u}) board.said(i, in(Stage::built, 1, {0, 1, 2}));
  ASSERT_THAT(board.decide(), SizeIs(1));
  board.said(3, ready());
  const auto refused = board.decide();
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].frame.verdict.kind, Kind::leave_out);
  EXPECT_EQ(refused[0].frame.verdict.failure.code, ErrorCode::aborted);
}

TEST_F(RegroupBoardTest, WhoIsSilentInAnAttemptIsLeftOut) {
  for (std::size_t i = 0; i < 4; ++i) board.said(i, ready());
  ASSERT_THAT(board.decide(), SizeIs(1));
  for (const std::size_t i : {0u, 1u, 2u}) board.said(i, in(Stage::built, 1, {0, 1, 2, 3}));
  EXPECT_THAT(board.decide(), IsEmpty());
  RegroupState impatient = in(Stage::built, 1, {0, 1, 2, 3});
  impatient.late = true;
  board.said(0, impatient);
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(2));
  EXPECT_THAT(orders[0].to, ElementsAre(3));
  EXPECT_EQ(orders[1].frame.verdict.kind, Kind::again);
  EXPECT_THAT(orders[1].to, ElementsAre(0, 1, 2));
}

TEST_F(RegroupBoardTest, ADeadlineThatComesWhenTheAttemptHasBegunCountsForNothing) {
  for (const std::size_t i : {0u, 1u}) board.said(i, ready());
  board.said(2, late());
  ASSERT_THAT(board.decide(), SizeIs(2));
  board.said(1, late());
  EXPECT_THAT(board.decide(), IsEmpty());
}

TEST_F(RegroupBoardTest, RanksThatAreLeftOutNeedNotCall) {
  for (const std::size_t i : {0u, 1u, 3u}) board.said(i, ready({2}));
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(2));
  EXPECT_THAT(orders[0].to, ElementsAre(2));
  EXPECT_THAT(orders[1].frame.verdict.members, ElementsAre(0, 1, 3));
}

TEST_F(RegroupBoardTest, AllLeaveOutTheSameRanks) {
  for (const std::size_t i : {0u, 1u, 2u}) board.said(i, ready({3}));
  board.said(3, ready({2}));
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].frame.verdict.failure.code, ErrorCode::mismatch);
  EXPECT_THAT(orders[0].frame.verdict.failure.text, HasSubstr("rank 0 and rank 3"));
  EXPECT_THAT(orders[0].to, ElementsAre(0, 1, 2, 3));
}

TEST_F(RegroupBoardTest, OnlyTheLargerPartGoesOnIfTheOtherOneMayLive) {
  board.gone(0, false);
  board.gone(1, false);
  for (const std::size_t i : {2u, 3u}) board.said(i, ready());
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1)) << "two of four, without the lowest rank";
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::refuse);
  EXPECT_THAT(orders[0].frame.verdict.failure.text, HasSubstr("rank 0, rank 1"));
}

TEST_F(RegroupBoardTest, OfTwoEqualPartsTheOneWithTheLowestRankGoesOn) {
  board.gone(2, false);
  board.gone(3, false);
  for (const std::size_t i : {0u, 1u}) board.said(i, ready());
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::begin);
}

TEST_F(RegroupBoardTest, ASingleRankGoesOnIfAllOthersHaveDiedForCertain) {
  for (const std::size_t i : {0u, 1u, 2u}) board.gone(i, true);
  board.said(3, ready());
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].frame.verdict.members, ElementsAre(3));
}

TEST_F(RegroupBoardTest, AMinorityGoesOnIfAllItsRanksAllowIt) {
  for (const std::size_t i : {0u, 1u, 2u}) board.gone(i, false);
  RegroupState state = ready();
  state.wish.minority = true;
  board.said(3, state);
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::begin);
}

TEST_F(RegroupBoardTest, AggregatorsWaitUntilARankShrinks) {
  RegroupBoard with_aggregator({"rank 0", "rank 1", "aggregator 0"}, {false, false, true});
  with_aggregator.said(2, ready());
  EXPECT_THAT(with_aggregator.decide(), IsEmpty());
  with_aggregator.gone(0, true);
  EXPECT_THAT(with_aggregator.decide(), IsEmpty());
  with_aggregator.gone(1, true);
  const auto orders = with_aggregator.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::refuse);
}

// --- Ranks that go on together or not at all

class WholeBoardTest : public RegroupBoardTest {
 protected:
  static RegroupState whole(bool is_late = false) {
    RegroupState state = is_late ? late() : ready();
    state.wish.whole = state.wish.minority = true;
    return state;
  }
  static void expect_refused(const std::vector<RegroupBoard::Order>& orders,
                             const std::vector<std::size_t>& to) {
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(orders[0].frame.verdict.kind, Kind::refuse);
    EXPECT_THAT(orders[0].to, testing::ElementsAreArray(to));
  }
  RegroupBoard job{{"rank 0", "rank 1", "rank 2", "aggregator 0", "aggregator 1"},
                   {false, false, false, true, true}};
};

TEST_F(WholeBoardTest, AnAggregatorMayBeMissing) {
  job.gone(4, true);
  job.said(3, ready());
  for (const std::size_t i : {0u, 1u}) job.said(i, whole());
  EXPECT_THAT(job.decide(), IsEmpty());
  job.said(2, whole());
  const auto orders = job.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::begin);
  EXPECT_THAT(orders[0].frame.verdict.members, ElementsAre(0, 1, 2, 3));
}

TEST_F(WholeBoardTest, ALateAggregatorIsLeftOut) {
  job.gone(4, true);
  for (const std::size_t i : {0u, 1u}) job.said(i, whole());
  job.said(2, whole(true));
  const auto orders = job.decide();
  ASSERT_THAT(orders, SizeIs(2));
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::leave_out);
  EXPECT_THAT(orders[0].to, ElementsAre(3));
  EXPECT_THAT(orders[1].frame.verdict.members, ElementsAre(0, 1, 2));
}

TEST_F(WholeBoardTest, NoRankMayBeMissingAndTheAggregatorsWaitForThoseWhoShrink) {
  for (const std::size_t i : {3u, 4u}) job.said(i, ready());
  job.said(0, whole());
  job.gone(1, true);
  expect_refused(job.decide(), {0});
  job.said(2, whole());
  expect_refused(job.decide(), {2});
  for (const std::size_t i : {0u, 2u}) job.said(i, ready());
  const auto orders = job.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].frame.verdict.members, ElementsAre(0, 2, 3, 4));
}

TEST_F(WholeBoardTest, ALateRankIsNotLeftOut) {
  for (const std::size_t i : {3u, 4u}) job.said(i, ready());
  job.said(0, whole());
  job.said(1, whole(true));
  expect_refused(job.decide(), {0, 1});
  for (const std::size_t i : {0u, 1u, 2u}) job.said(i, ready());
  const auto orders = job.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].frame.verdict.members, ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(WholeBoardTest, ARankThatShrinksDoesNotWaitForThoseWhoNeedAll) {
  job.said(0, whole());
  job.said(1, ready());
  expect_refused(job.decide(), {0});
}

TEST_F(WholeBoardTest, ADeathInTheAttemptEndsIt) {
  job.gone(4, true);
  job.said(3, ready());
  for (const std::size_t i : {0u, 1u, 2u}) job.said(i, whole());
  ASSERT_THAT(job.decide(), SizeIs(1));
  job.gone(2, true);
  const auto again = job.decide();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].frame.verdict.kind, Kind::again);
  RegroupState state = whole();
  state.attempt = 1;
  job.said(0, state);
  expect_refused(job.decide(), {0});
}

// --- A hub that takes another one's place

TEST_F(RegroupBoardTest, ANewHubDecidesNothingBeforeItKnowsAll) {
  board.took_over();
  board.gone(0, true);
  board.said(1, in(Stage::built, 3, {0, 1, 2, 3}));
  board.said(2, in(Stage::built, 3, {0, 1, 2, 3}));
  EXPECT_THAT(board.decide(), IsEmpty()) << "rank 3 may know of a commit";
  board.said(3, in(Stage::building, 3, {0, 1, 2, 3}));
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1)) << "rank 0 is dead, and nobody knows of a commit";
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::again);
  EXPECT_THAT(orders[0].to, ElementsAre(1, 2, 3));
}

TEST_F(RegroupBoardTest, ANewHubDecidesWithoutThoseWhoDoNotComeToIt) {
  board.took_over();
  board.gone(0, true);
  for (const std::size_t i : {1u, 2u}) board.said(i, in(Stage::built, 3, {0, 1, 2, 3}));
  board.patience_is_over();
  ASSERT_THAT(board.decide(), SizeIs(1));
  for (const std::size_t i : {1u, 2u}) {
    RegroupState state = late();
    state.attempt = 3;
    board.said(i, state);
  }
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(2));
  EXPECT_THAT(orders[0].to, ElementsAre(3));
  EXPECT_THAT(orders[1].frame.verdict.members, ElementsAre(1, 2));
}

TEST_F(RegroupBoardTest, ANewHubFollowsACommitThatOneMemberKnows) {
  board.took_over();
  board.gone(0, true);
  board.said(3, in(Stage::committed, 3, {0, 1, 2, 3}));
  EXPECT_THAT(board.decide(), IsEmpty());
  board.said(1, in(Stage::built, 3, {0, 1, 2, 3}));
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::commit);
  EXPECT_THAT(orders[0].to, ElementsAre(1));
}

// --- Members that grow

class GrowBoardTest : public RegroupBoardTest {
 protected:
  static RegroupState grows(int size) {
    RegroupState state = ready();
    state.wish.grow = size;
    return state;
  }
  static RegroupState grown(Stage stage, std::uint64_t attempt) {
    RegroupState state = in(stage, attempt, {0, 1, 2, 3});
    state.grow = 6;
    return state;
  }
  void all_begin() {
    for (std::size_t i = 0; i < 4; ++i) board.said(i, grows(6));
    ASSERT_THAT(board.decide(), SizeIs(1));
  }
  static void expect_refused(const std::vector<RegroupBoard::Order>& orders, ErrorCode code,
                             const std::vector<std::size_t>& to, const std::string& text) {
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(orders[0].frame.verdict.kind, Kind::refuse);
    EXPECT_EQ(orders[0].frame.verdict.failure.code, code);
    EXPECT_THAT(orders[0].frame.verdict.failure.text, HasSubstr(text));
    EXPECT_THAT(orders[0].to, testing::ElementsAreArray(to));
  }
};

TEST_F(GrowBoardTest, BeginsWhenAllHaveCalledAndSaysHowManyTheyAreToBe) {
  for (std::size_t i = 0; i < 3; ++i) board.said(i, grows(6));
  EXPECT_THAT(board.decide(), IsEmpty());
  board.said(3, grows(6));
  const auto begin = board.decide();
  ASSERT_THAT(begin, SizeIs(1));
  EXPECT_EQ(begin[0].frame.verdict.kind, Kind::begin);
  EXPECT_EQ(begin[0].frame.verdict.grow, 6);
  EXPECT_THAT(begin[0].frame.verdict.members, ElementsAre(0, 1, 2, 3));
  for (std::size_t i = 0; i < 4; ++i) board.said(i, grown(Stage::built, 1));
  const auto commit = board.decide();
  ASSERT_THAT(commit, SizeIs(1));
  EXPECT_EQ(commit[0].frame.verdict.kind, Kind::commit);
}

TEST_F(GrowBoardTest, ADeathBeforeTheAttemptOrInItEndsTheCalls) {
  board.gone(2, true);
  board.said(0, grows(6));
  expect_refused(board.decide(), ErrorCode::peer_failed, {0}, "rank 2");
  board = RegroupBoard(test::rank_names(4), {});
  all_begin();
  for (const std::size_t i : {0u, 1u}) board.said(i, grown(Stage::built, 1));
  board.gone(3, true);
  expect_refused(board.decide(), ErrorCode::peer_failed, {0, 1, 2}, "rank 3");
  EXPECT_THAT(board.decide(), IsEmpty());
}

TEST_F(GrowBoardTest, WhoIsSilentIsNamedButNotLeftOut) {
  for (std::size_t i = 0; i < 3; ++i) board.said(i, grows(6));
  RegroupState impatient = grows(6);
  impatient.late = true;
  board.said(0, impatient);
  expect_refused(board.decide(), ErrorCode::timeout, {0, 1, 2}, "rank 3");
  all_begin();
  for (std::size_t i = 0; i < 3; ++i) board.said(i, grown(Stage::built, 1));
  impatient = grown(Stage::built, 1);
  impatient.late = true;
  board.said(0, impatient);
  expect_refused(board.decide(), ErrorCode::timeout, {0, 1, 2, 3}, "rank 3");
  for (std::size_t i = 0; i < 4; ++i) {
    RegroupState state = grows(6);
    state.attempt = 1;
    board.said(i, state);
  }
  ASSERT_THAT(board.decide(), SizeIs(1)) << "the calls may be repeated";
}

TEST_F(GrowBoardTest, AllWantTheSame) {
  for (std::size_t i = 0; i < 3; ++i) board.said(i, grows(6));
  board.said(3, grows(5));
  expect_refused(board.decide(), ErrorCode::mismatch, {0, 1, 2, 3},
                 "rank 0 asks for 6 ranks, and rank 3 for 5");
  for (const std::size_t i : {0u, 2u, 3u}) board.said(i, ready());
  board.said(1, grows(6));
  expect_refused(board.decide(), ErrorCode::mismatch, {0, 1, 2, 3},
                 "rank 1 grows the communicator, and rank 0 shrinks");
}

TEST_F(GrowBoardTest, WhoGrowsIsToldOfAFailureAndOthersShrink) {
  for (const std::size_t i : {0u, 1u, 2u}) board.said(i, ready());
  board.said(3, grows(6));
  board.failed({ErrorCode::aborted, "rank 1 gives up"});
  expect_refused(board.decide(), ErrorCode::aborted, {3}, "rank 1 gives up");
  board.said(3, ready());
  const auto begin = board.decide();
  ASSERT_THAT(begin, SizeIs(1));
  EXPECT_THAT(begin[0].frame.verdict.members, ElementsAre(0, 1, 2, 3));
}

TEST_F(GrowBoardTest, ANewHubKnowsWhatTheAttemptWasFor) {
  board.took_over();
  board.gone(0, true);
  for (const std::size_t i : {1u, 2u, 3u}) board.said(i, grown(Stage::built, 1));
  expect_refused(board.decide(), ErrorCode::peer_failed, {1, 2, 3}, "rank 0");
  board.took_over();
  board.said(1, grown(Stage::built, 1));
  board.said(2, grown(Stage::committed, 1));
  const auto orders = board.decide();
  ASSERT_THAT(orders, SizeIs(1)) << "who knows of a commit has returned";
  EXPECT_EQ(orders[0].frame.verdict.kind, Kind::commit);
}

TEST_F(GrowBoardTest, AggregatorsTakePartOnceTheCommunicatorHasFailed) {
  RegroupBoard with_aggregator({"rank 0", "rank 1", "aggregator 0"}, {false, false, true});
  with_aggregator.said(0, grows(3));
  EXPECT_THAT(with_aggregator.decide(), IsEmpty());
  EXPECT_FALSE(with_aggregator.awaits_servers());
  with_aggregator.said(1, grows(3));
  EXPECT_THAT(with_aggregator.decide(), IsEmpty());
  EXPECT_TRUE(with_aggregator.awaits_servers());
  with_aggregator.said(2, ready());
  const auto begin = with_aggregator.decide();
  ASSERT_THAT(begin, SizeIs(1));
  EXPECT_THAT(begin[0].to, ElementsAre(0, 1, 2));
  EXPECT_FALSE(with_aggregator.awaits_servers());
}

}  // namespace
}  // namespace nzcl::bootstrap
