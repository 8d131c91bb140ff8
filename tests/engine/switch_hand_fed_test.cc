// The two halves of the switch exchange, fed by hand: what each packet does, and what a wrong one does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nzcl/error.h"
#include "runtime/exchange/switch/port.h"
#include "runtime/exchange/switch/slot_relay.h"
#include "runtime/exchange/switch/slot_server.h"
#include "runtime/exchange/switch/slot_worker.h"
#include "tests/engine/switch_tensor.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> packet(Header header, const std::vector<std::int32_t>& values = {},
                              const Job& job = kJob) {
  std::vector<std::byte> bytes(sizeof(Header) + 4 * values.size());
  if (!values.empty()) {
    std::memcpy(bytes.data() + sizeof(Header), values.data(), 4 * values.size());
    header.flags |= kHasValues;
    header.blocks = 1;
  }
  seal(header, job, bytes);
  return bytes;
}

Header contribution(int rank, std::uint32_t round, std::uint32_t piece, std::uint32_t next) {
  Header h;
  h.rank = static_cast<std::uint16_t>(rank);
  h.round = round;
  h.piece = piece;
  h.next = next;
  return h;
}

class ServerTest : public ::testing::Test {
 protected:
  struct Sent {
    int rank;
    Header header;
    std::vector<std::int32_t> values;
  };
  /// Takes all that the server wants to send.
  std::vector<Sent> sent() {
    std::vector<Sent> all;
    while (const auto out = server.front()) {
      const auto opened = open(out->packet, kJob);
      EXPECT_TRUE(opened);
      all.push_back({out->rank, opened->header, {opened->values.begin(), opened->values.end()}});
      server.pop();
    }
    return all;
  }
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

/// Two children of a relay whose rank above is 1.
class RelayTest : public ::testing::Test {
 protected:
  static constexpr Job kAbove{7, {8, 9}};
  void child(int rank, std::uint32_t round, std::uint32_t piece, std::uint32_t next,
             const std::vector<std::int32_t>& values = {}, Kind kind = Kind::contribution) {
    Header h = contribution(rank, round, piece, next);
    h.kind = kind;
    relay.receive(rank, packet(h, values));
  }
  void above(Header h, const std::vector<std::int32_t>& values = {}) {
    relay.receive_from_above(packet(h, values, kAbove));
  }
  static Header result(std::uint32_t round, std::uint32_t piece, std::uint32_t next) {
    Header h = contribution(kAggregatorRank, round, piece, next);
    h.kind = Kind::result;
    return h;
  }
  struct Seen {
    int rank;
    Header header;
    std::vector<std::int32_t> values;
  };
  std::vector<Seen> sent() {
    std::vector<Seen> all;
    for (; const auto out = relay.front(); relay.pop()) {
      const auto opened = open(out->packet, out->rank == kToAbove ? kAbove : kJob);
      EXPECT_TRUE(opened);
      if (opened) all.push_back({out->rank, opened->header, {opened->values.begin(), opened->values.end()}});
    }
    return all;
  }
  SlotRelay relay{Pool{2, 1, 4, kJob}, Pool{2, 1, 4, kAbove}, 1};
};

TEST_F(RelayTest, SendsOneContributionUpAndTheResultDown) {
  child(0, 0, kNoPiece, 0);
  EXPECT_TRUE(sent().empty());
  child(1, 0, kNoPiece, 3);
  auto up = sent();
  ASSERT_EQ(up.size(), 1u);
  EXPECT_EQ(up[0].rank, kToAbove);
  EXPECT_EQ(up[0].header.kind, Kind::contribution);
  EXPECT_EQ(up[0].header.rank, 1);
  EXPECT_EQ(up[0].header.next, 0u);
  above(result(0, kNoPiece, 0));
  EXPECT_EQ(sent().at(0).rank, kToAll);
  child(0, 1, 0, kNoPiece, {1, 2});
  child(1, 1, 0, 3);
  up = sent();
  EXPECT_THAT(up.at(0).values, ElementsAre(1, 2));
  EXPECT_EQ(up.at(0).header.next, 3u);
  above(result(1, 0, 2), {5, 5});
  const auto down = sent();
  ASSERT_EQ(down.size(), 1u);
  EXPECT_EQ(down[0].header.next, 2u);
  EXPECT_THAT(down[0].values, ElementsAre(5, 5));
  child(0, 1, 0, kNoPiece, {1, 2});
  EXPECT_EQ(sent().at(0).rank, 0) << "it is answered again, and alone";
}

TEST_F(RelayTest, AChildsRepetitionMakesItAskAbove) {
  child(0, 0, kNoPiece, 0);
  child(0, 0, kNoPiece, 0);
  EXPECT_EQ(sent().at(0).header.rank, 1) << "its own child is missing";
  child(1, 0, kNoPiece, 0);
  sent();
  child(1, 0, kNoPiece, 0);
  EXPECT_EQ(sent().at(0).header.kind, Kind::question);
  Header h = result(0, 0, 0);
  h.kind = Kind::waiting;
  h.flags = kAbsent;
  above(h);
  EXPECT_EQ(sent().at(0).header.kind, Kind::contribution) << "it was lost";
  h.flags = 0;
  h.rank = 0;
  above(h);
  const auto waiting = sent();
  EXPECT_EQ(waiting.at(0).rank, kToAll);
  EXPECT_EQ(waiting.at(0).header.kind, Kind::waiting);
}

TEST_F(RelayTest, AResultThatCannotBeFails) {
  child(0, 0, kNoPiece, 0);
  child(1, 0, kNoPiece, 0);
  above(result(0, kNoPiece, 1));
  EXPECT_THAT(relay.failure(), HasSubstr("cannot be")) << "a child holds piece 0";
}

TEST_F(ServerTest, AClampedValueIsReportedToAll) {
  open_tensor();
  Header h = contribution(0, 1, 0, kNoPiece);
  h.flags = kClamped;
  server.receive(0, packet(h, {1}));
  give(1, 1, 0, kNoPiece, {2});
  EXPECT_EQ(sent().at(0).header.flags, kHasValues | kClamped);
}

TEST(PortAddress, TakesAsManySlotsAsAnyAggregatorMayHave) {
  PortAddress address{.address = "10.0.0.1:5",
                      .max_bytes = 1472,
                      .slots = kMostSlots,
                      .window = 7,
                      .job = kJob,
                      .zeros = true};
  const PortAddress read = PortAddress::decode(address.encode(), "aggregator 0");
  EXPECT_EQ(read.slots, kMostSlots);
  EXPECT_EQ(read.window, 7u);
  EXPECT_EQ(read.job.key.high, kJob.key.high);
  EXPECT_TRUE(read.zeros);
  address.window = 0;
  EXPECT_THROW(PortAddress::decode(address.encode(), "aggregator 0"), Error);
  address.window = kMostSlots + 1;
  EXPECT_THROW(PortAddress::decode(address.encode(), "aggregator 0"), Error);
  address.window = 7;
  address.slots = kMostSlots + 1;
  EXPECT_THROW(PortAddress::decode(address.encode(), "aggregator 0"), Error);
  EXPECT_THROW(PortAddress::decode("10.0.0.1:5 1472", "aggregator 0"), Error);
}

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
  MemoryTensor tensor{{1, 2, 3, 4, 0, 0, 0, 0, 9, 9}, 4, 1};
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

TEST(RoundTrips, AReplyThatMayHaveWaitedForOthersOnlyLowersThem) {
  RoundTrips trips;
  trips.bounded(300us);
  EXPECT_EQ(trips.smoothed(), 300us) << "better than nothing";
  for (int i = 0; i < 100; ++i) trips.bounded(10ms);
  EXPECT_EQ(trips.smoothed(), 300us);
  for (int i = 0; i < 100; ++i) trips.bounded(100us);
  EXPECT_NEAR(static_cast<double>(trips.smoothed().count()), 1e5, 1e3);
}

TEST(RoundTrips, DoubledTimeoutsShortenAsFarAsAReplyShows) {
  RoundTrips trips;
  for (int i = 0; i < 100; ++i) trips.measured(i * 1ms, 1ms);
  for (int i = 0; i < 4; ++i) trips.expired(i);
  EXPECT_EQ(trips.doublings(0), 4);
  trips.bounded(trips.timeout(2));
  EXPECT_EQ(trips.doublings(0), 2);
  trips.measured(1s, 1ms);
  EXPECT_EQ(trips.doublings(0), 0);
}

TEST_F(WorkerTest, ResultsThatCannotBeFail) {
  const auto text = [&](auto give) {
    MemoryTensor own{{1, 2, 3, 4, 0, 0, 0, 0, 9, 9}, 4, 1};
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

TEST(TimerWheel, ExpiresEachOnceAndNotBeforeItsTime) {
  TimerWheel wheel(5);
  std::vector<std::uint32_t> expired;
  const auto note = [&](std::uint32_t item) { expired.push_back(item); };
  wheel.set(3, 0ms, 10ms);
  wheel.set(1, 0ms, 5ms);
  wheel.set(2, 0ms, 5ms);
  wheel.clear(2);
  wheel.advance(5ms - 1ns, note);
  EXPECT_THAT(expired, ElementsAre());
  wheel.advance(9ms, note);
  EXPECT_THAT(expired, ElementsAre(1));
  wheel.set(3, 9ms, 5ms);
  wheel.advance(11ms, note);
  EXPECT_THAT(expired, ElementsAre(1));
  wheel.advance(100s, note);
  EXPECT_THAT(expired, ElementsAre(1, 3));
}

TEST(SipHash, GivesThePublishedValues) {
  // From the appendix of the paper, and from the authors' vectors for shorter inputs.
  const SipKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::array<std::byte, 15> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  SipHash whole(key), parts(key), empty(key);
  whole.add(bytes);
  parts.add(std::span(bytes).first(8));
  parts.add(std::span(bytes).subspan(8));
  EXPECT_EQ(whole.finish(), 0xa129ca6149be45e5u);
  EXPECT_EQ(parts.finish(), 0xa129ca6149be45e5u);
  EXPECT_EQ(empty.finish(), 0x726fdb47dd0e0e31u);
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
