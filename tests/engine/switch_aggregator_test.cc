// The aggregator's half of the switch exchange, fed by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/switch/slot_server.h"
#include "tests/engine/switch_packets.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ServerTest : public ::testing::Test {
 protected:
  std::vector<SentPacket> sent() { return take_all(server); }
  void give(int rank, std::uint32_t round, std::uint32_t piece, std::uint32_t next,
            const std::vector<std::int32_t>& values = {}) {
    server.receive(rank, packet(contribution(rank, round, piece, next), values));
  }
  /// Opens a tensor whose first piece is 0.
  void open_tensor() {
    give(0, 0, kNoPiece, 0);
    give(1, 0, kNoPiece, 0);
    sent();
  }
  SlotServer server{Pool{2, 1, 4, kJob}};
};

TEST_F(ServerTest, AnswersAllWhenAllHaveCome) {
  give(0, 0, kNoPiece, 3);
  EXPECT_TRUE(sent().empty());
  give(1, 0, kNoPiece, 2);
  const auto opening = sent();
  ASSERT_EQ(opening.size(), 1u);
  EXPECT_EQ(opening[0].rank, kToAll);
  EXPECT_EQ(opening[0].header.next, 2u);
  give(1, 1, 2, kNoPiece, {1, 2, 3});
  give(0, 1, 2, 3);
  const auto sum = sent();
  ASSERT_EQ(sum.size(), 1u);
  EXPECT_EQ(sum[0].header.piece, 2u);
  EXPECT_EQ(sum[0].header.next, 3u);
  EXPECT_THAT(sum[0].values, ElementsAre(1, 2, 3));
}

TEST_F(ServerTest, ADuplicateIsNotAddedAndIsToldWhoIsMissing) {
  open_tensor();
  give(0, 1, 0, kNoPiece, {5, 5});
  give(0, 1, 0, kNoPiece, {5, 5});
  const auto waiting = sent();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].rank, 0);
  EXPECT_EQ(waiting[0].header.kind, Kind::waiting);
  EXPECT_EQ(waiting[0].header.rank, 1);
  EXPECT_EQ(waiting[0].header.piece, 1u) << "one rank is missing";
  give(1, 1, 0, kNoPiece, {1, -1});
  const auto sum = sent();
  ASSERT_EQ(sum.size(), 1u);
  EXPECT_THAT(sum[0].values, ElementsAre(6, 4));
}

TEST_F(ServerTest, ALateOneForACompleteRoundIsAnsweredAgainAndAlone) {
  open_tensor();
  give(0, 1, 0, kNoPiece, {5});
  give(1, 1, 0, kNoPiece, {6});
  sent();
  give(1, 1, 0, kNoPiece, {6});
  const auto again = sent();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].rank, 1);
  EXPECT_THAT(again[0].values, ElementsAre(11));
}

TEST_F(ServerTest, AnOlderRoundsCopyIsDropped) {
  open_tensor();
  for (const int rank : {0, 1}) give(rank, 1, 0, 1, {5});
  for (const int rank : {0, 1}) give(rank, 2, 1, 2, {6});
  for (const int rank : {0, 1}) give(rank, 3, 2, kNoPiece, {7});
  sent();
  give(0, 1, 0, 1, {5});
  give(0, 0, kNoPiece, 0);
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(server.failure(), "");
}

TEST_F(ServerTest, ARoundThatCannotBeUnderWayIsRefused) {
  open_tensor();
  give(0, 2, 0, kNoPiece, {1});  // round 1 is not complete
  give(0, 3, 0, kNoPiece, {1});
  give(0, 77, 0, kNoPiece, {1});
  EXPECT_EQ(server.refused(), 3u);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ServerTest, StrangersPacketsReachNoSum) {
  open_tensor();
  const Header h = contribution(0, 1, 0, kNoPiece);
  server.receive(0, packet(h, {9}, {kJob.tag, {1, 1}}));        // another key
  server.receive(0, packet(h, {9}, {kJob.tag + 1, kJob.key}));  // another job
  server.receive(1, packet(h, {9}));                            // another rank's address
  for (std::size_t at = 0; at < 52; ++at) {
    auto bytes = packet(h, {9});
    bytes[at] ^= std::byte{16};
    server.receive(0, bytes);
  }
  for (std::size_t size = 0; size < 52; ++size) {
    auto bytes = packet(h, {9});
    bytes.resize(size);
    server.receive(0, bytes);
  }
  Header result = h;
  result.kind = Kind::result;
  server.receive(0, packet(result, {9}));
  EXPECT_EQ(server.refused(), 3u + 52 + 52 + 1);
  give(0, 1, 0, kNoPiece, {1});
  give(1, 1, 0, kNoPiece, {2});
  const auto sum = sent();
  ASSERT_EQ(sum.size(), 1u);
  EXPECT_THAT(sum[0].values, ElementsAre(3));
}

TEST_F(ServerTest, DifferentOperationsAreNamed) {
  Header h = contribution(0, 0, kNoPiece, 0);
  server.receive(0, packet(h));
  h.rank = 1;
  h.shape = 5;
  server.receive(1, packet(h));
  EXPECT_THAT(server.failure(), HasSubstr("ranks 0 and 1 have called different operations"));
}

TEST_F(ServerTest, SumsWrapAndLargestExponentOfThoseWhoHoldTheNextPieceIsTaken) {
  Header a = contribution(0, 0, kNoPiece, 3), b = contribution(1, 0, kNoPiece, 3);
  a.next_exponent = 17;
  b.next_exponent = 80;
  server.receive(0, packet(a));
  server.receive(1, packet(b));
  EXPECT_EQ(sent().at(0).header.next_exponent, 80);
  a = contribution(0, 1, 3, 5), b = contribution(1, 1, 3, 4);
  a.exponent = b.exponent = 80;
  a.next_exponent = 200;
  b.next_exponent = 3;
  server.receive(0, packet(a, {2147483647}));
  server.receive(1, packet(b, {1}));
  const auto sum = sent();
  EXPECT_EQ(sum.at(0).header.next_exponent, 3) << "rank 0 does not hold piece 4";
  EXPECT_THAT(sum.at(0).values, ElementsAre(-2147483647 - 1));
}

TEST_F(ServerTest, AnExponentThatWasNotAgreedFails) {
  open_tensor();
  Header h = contribution(0, 1, 0, kNoPiece);
  h.exponent = 9;
  server.receive(0, packet(h, {1}));
  EXPECT_THAT(server.failure(), HasSubstr("rank 0"));
}

TEST_F(ServerTest, TooManyValuesFailAndReachNothing) {
  open_tensor();
  give(0, 1, 0, kNoPiece, {1, 2, 3, 4, 5});
  EXPECT_THAT(server.failure(), HasSubstr("5 values"));
}

TEST_F(ServerTest, BlocksAreAddedEachToItsOwnAndOnlyThoseThatAnyRankHoldsReturn) {
  SlotServer blocks(Pool{3, 1, 8, kJob});  // pieces of up to four blocks of two values
  for (int rank = 0; rank < 3; ++rank) blocks.receive(rank, packet(contribution(rank, 0, kNoPiece, 0)));
  take_all(blocks);
  const auto contribute = [&](int rank, std::uint64_t held, const std::vector<std::int32_t>& values) {
    Header h = contribution(rank, 1, 0, kNoPiece);
    h.blocks = held;
    blocks.receive(rank, packet(h, values));
  };
  contribute(0, 0b1010, {1, 2, 3, 4});
  contribute(1, 0, {});
  contribute(2, 0b1100, {10, 20, 30, 40});
  const auto sum = take_all(blocks);
  ASSERT_EQ(sum.size(), 1u) << blocks.failure();
  EXPECT_EQ(sum[0].header.blocks, 0b1110u);
  EXPECT_THAT(sum[0].values, ElementsAre(1, 2, 10, 20, 33, 44));
}

TEST_F(ServerTest, ValuesThatAreNotThoseOfTheirBlocksFail) {
  struct Wrong {
    std::uint64_t first, second;  // blocks
    std::vector<std::int32_t> values;
  };
  for (const Wrong& wrong : {Wrong{1, 0b11, {1, 2, 3}},        // not as many for each block
                             Wrong{1, 0b1, {1, 2}},            // more than the first rank's block has
                             Wrong{1, 0b10001, {1, 2}},        // beyond the end of a piece
                             Wrong{0, ~std::uint64_t{0}, {}},  // blocks without values
                             Wrong{0, std::uint64_t{1} << 63, {1}}}) {
    SlotServer blocks(Pool{2, 1, 4, kJob});
    for (int rank = 0; rank < 2; ++rank) blocks.receive(rank, packet(contribution(rank, 0, kNoPiece, 0)));
    Header h = contribution(0, 1, 0, kNoPiece);
    if (wrong.first != 0) blocks.receive(0, packet(h, {5}));
    EXPECT_EQ(blocks.failure(), "");
    h = contribution(1, 1, 0, kNoPiece);
    h.blocks = wrong.second;
    blocks.receive(1, packet(h, wrong.values));
    EXPECT_THAT(blocks.failure(), HasSubstr("rank 1")) << wrong.second;
  }
}

TEST_F(ServerTest, AQuestionIsAnsweredAndAddsNothing) {
  const auto ask = [&](int rank, std::uint32_t round) {
    Header h = contribution(rank, round, 0, kNoPiece);
    h.kind = Kind::question;
    server.receive(rank, packet(h));
    return sent();
  };
  open_tensor();
  const auto absent = ask(1, 1);
  ASSERT_EQ(absent.size(), 1u);
  EXPECT_EQ(absent[0].header.kind, Kind::waiting);
  EXPECT_EQ(absent[0].header.flags, kAbsent);
  EXPECT_EQ(absent[0].header.rank, 1);
  EXPECT_EQ(absent[0].header.piece, 2u) << "nobody has come";
  give(1, 1, 0, kNoPiece, {5});
  EXPECT_EQ(ask(1, 1).at(0).header.flags, 0) << "it is only told to wait";
  EXPECT_EQ(ask(0, 1).at(0).header.flags, kAbsent);
  give(0, 1, 0, kNoPiece, {6});
  sent();
  const auto result = ask(0, 1);
  ASSERT_EQ(result.size(), 1u);
  EXPECT_EQ(result[0].rank, 0);
  EXPECT_THAT(result[0].values, ElementsAre(11));
  EXPECT_TRUE(ask(0, 5).empty()) << "nobody can be in this round";
  EXPECT_EQ(server.refused(), 1u);
}

/// An aggregator with slots enough for ranks to send something later.
class LossTest : public ::testing::Test {
 protected:
  void open_slot(int rank, std::uint16_t slot, Kind kind = Kind::contribution) {
    Header h = contribution(rank, 0, kNoPiece, slot);
    h.slot = slot;
    h.kind = kind;
    server->receive(rank, packet(h));
  }
  /// What is sent to each rank: the slots of all packets of this kind.
  std::vector<std::pair<int, std::uint16_t>> sent(Kind kind, std::uint8_t flags) {
    std::vector<std::pair<int, std::uint16_t>> all;
    for (; const auto out = server->front(); server->pop()) {
      const auto opened = open(out->packet, kJob);
      if (opened->header.kind == kind && opened->header.flags == flags)
        all.emplace_back(out->rank, opened->header.slot);
    }
    return all;
  }
  std::vector<std::pair<int, std::uint16_t>> told() { return sent(Kind::waiting, kAbsent); }
  using Told = std::pair<int, std::uint16_t>;
  std::optional<SlotServer> server{std::in_place, Pool{3, 8, 4, kJob}};
};

TEST_F(LossTest, ARankWhoseLaterContributionsComeIsToldWhatItHasLost) {
  for (std::uint16_t s = 0; s < 8; ++s) open_slot(0, s);
  EXPECT_THAT(told(), ElementsAre()) << "the others may be late";
  for (const int s : {0, 2, 3}) open_slot(1, static_cast<std::uint16_t>(s));
  EXPECT_THAT(told(), ElementsAre()) << "a network may change the order of two packets";
  open_slot(1, 4);
  EXPECT_THAT(told(), ElementsAre(Told{1, 1})) << "and rank 2 is only late";
  open_slot(1, 5);
  EXPECT_THAT(told(), ElementsAre()) << "it is told once";
  open_slot(1, 1);
  EXPECT_THAT(told(), ElementsAre());
}

TEST_F(LossTest, WhoeverAsksMakesTheAggregatorTellThoseWhoLostItAgain) {
  for (std::uint16_t s = 0; s < 8; ++s) open_slot(0, s);
  for (const int s : {0, 2, 3, 4}) open_slot(1, static_cast<std::uint16_t>(s));
  EXPECT_THAT(told(), ElementsAre(Told{1, 1}));
  std::vector<int> when;
  for (int question = 1; question <= 16; ++question) {
    open_slot(0, 1, Kind::question);
    const auto those = told();
    if (those.empty()) continue;
    EXPECT_THAT(those, ElementsAre(Told{1, 1})) << "rank 2 has sent nothing later";
    when.push_back(question);
  }
  EXPECT_THAT(when, ElementsAre(1, 2, 4, 8, 16)) << "questions by many must not make as many answers";
}

TEST_F(LossTest, AnAggregatorThatOnlyTurnsPacketsIntoAnswersTellsNobodyElse) {
  server.emplace(Pool{3, 8, 4, kJob, true});
  for (std::uint16_t s = 0; s < 8; ++s) open_slot(0, s);
  for (const int s : {0, 2, 3, 4, 5, 6}) open_slot(1, static_cast<std::uint16_t>(s));
  open_slot(0, 1);
  EXPECT_THAT(told(), ElementsAre());
}

TEST_F(ServerTest, AClampedValueIsReportedToAll) {
  open_tensor();
  Header h = contribution(0, 1, 0, kNoPiece);
  h.flags = kClamped;
  server.receive(0, packet(h, {1}));
  give(1, 1, 0, kNoPiece, {2});
  EXPECT_EQ(sent().at(0).header.flags, kHasValues | kClamped);
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
