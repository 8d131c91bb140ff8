// Gathering by doubling: the exchange of rank 0, with the other ranks played by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/gather/gather_exchange.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::GatherExchange;
using engine::Operation;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

constexpr std::uint32_t kSlots = 4;
using Bytes = std::vector<std::uint8_t>;

template <typename T>
void append(Bytes& to, const T& value) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(&value);
  to.insert(to.end(), begin, begin + sizeof value);
}

/// A rank's contribution to 20 floats in blocks of 4.
struct Part {
  std::uint64_t bitmap = 0;
  std::vector<float> values;
  std::uint16_t refusal = 0;  // then `reason` is sent in place of the values
  std::string reason;
  friend bool operator==(const Part&, const Part&) = default;
};

wire::OperationRecord record() {
  wire::OperationRecord r = HandMade::record();
  r.algorithm = wire::Algorithm::doubling;
  return r;
}

void append(Bytes& to, const Part& part) {
  append(to, part.bitmap);
  for (const float v : part.values) append(to, v);
  to.insert(to.end(), part.reason.begin(), part.reason.end());
}

std::uint32_t payload_bytes(const Part& part) {
  return static_cast<std::uint32_t>(part.refusal != 0 ? part.reason.size() : part.values.size() * 4);
}

/// The sender's own contribution, and a batch of what it passes on, if that is anything.
struct Gathered {
  wire::Header header, batch;
  wire::OperationRecord record = test::record();
  std::vector<Part> parts;
  Bytes tail;  // behind the last contribution

  Gathered(std::uint64_t epoch, std::vector<Part> all) : parts(std::move(all)) {
    header = {.flags = wire::kHasBitmap, .epoch = epoch, .sequence = epoch};
    header.bitmap_bytes = 8;
    batch = {.flags = wire::kBatch, .epoch = epoch, .sequence = epoch};
    batch.entries = static_cast<std::uint16_t>(parts.size() - 1);
  }
  Bytes bytes() const {
    wire::Header own = header;
    if (own.payload_bytes == 0) own.payload_bytes = payload_bytes(parts[0]);
    own.refusal_code = parts[0].refusal;
    if (own.refusal_code != 0) own.flags |= wire::kRefused;
    if (parts.size() > 1) own.flags |= wire::kMore;
    Bytes all, others;
    append(all, own);
    append(all, record);
    append(all, parts[0]);
    if (parts.size() == 1) return all;
    all.resize((all.size() + 7) / 8 * 8);
    for (std::size_t i = 1; i < parts.size(); ++i) {
      append(others, wire::BatchEntry{payload_bytes(parts[i]), parts[i].refusal, 0});
      append(others, parts[i]);
      others.resize((others.size() + 7) / 8 * 8);
    }
    others.insert(others.end(), tail.begin(), tail.end());
    wire::Header h = batch;
    if (h.payload_bytes == 0) h.payload_bytes = static_cast<std::uint32_t>(others.size());
    append(all, h);
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
};

Part part_of(std::uint64_t bitmap, std::uint16_t refusal, const std::uint8_t* payload, std::size_t bytes) {
  Part part{bitmap, {}, refusal, ""};
  if (refusal != 0) {
    part.reason.assign(reinterpret_cast<const char*>(payload), bytes);
  } else {
    part.values.resize(bytes / 4);
    std::memcpy(part.values.data(), payload, bytes);
  }
  return part;
}

/// Reads a message that the exchange has sent back into its parts.
std::vector<Part> parts_of(const HandFed::Sent& sent) {
  const auto bytes_of = [](const Message& m) {
    Bytes bytes;
    for (const float v : m.payload) append(bytes, v);
    return bytes;
  };
  const Message& own = sent.message;
  EXPECT_EQ(own.header.flags & ~(wire::kMore | wire::kRefused), wire::kHasBitmap);
  std::vector<Part> parts{
      part_of(own.bitmap.front(), own.header.refusal_code, bytes_of(own).data(), own.header.payload_bytes)};
  EXPECT_LE(sent.more.size(), 1u);
  for (const Message& batch : sent.more) {
    EXPECT_EQ(batch.header.flags, wire::kBatch);
    const Bytes payload = bytes_of(batch);
    std::size_t at = 0;
    for (int i = 0; i < batch.header.entries; ++i) {
      wire::BatchEntry entry;
      std::uint64_t bitmap = 0;
      std::memcpy(&entry, payload.data() + at, sizeof entry);
      std::memcpy(&bitmap, payload.data() + at + 8, 8);
      parts.push_back(part_of(bitmap, entry.refusal_code, payload.data() + at + 16, entry.payload_bytes));
      at += wire::entry_bytes(8, entry.payload_bytes);
    }
    EXPECT_EQ(at, batch.header.payload_bytes);
  }
  return parts;
}

const Part kOwn{0b00010, {1, 2, 3, 4}, 0, ""};
const Part kNothing{};

class DoublingTest : public testing::Test {
 protected:
  explicit DoublingTest(int workers = 4, std::uint32_t slots = kSlots)
      : fed_({.self = 0, .workers = workers, .dedicated = 0, .slots = slots, .doubling = true}),
        exchange_(fed_.context(), Priority::doubling, engine::doubling_schedule(workers)) {}

  /// Starts an operation to which this rank contributes kOwn.
  Operation& start(std::uint64_t epoch, const char* refusal = nullptr) {
    std::vector<float> data(20, 0.0f);
    if (refusal == nullptr) std::iota(data.begin() + 4, data.begin() + 8, 1.0f);
    started_.push_back(std::make_unique<HandMade>(fed_, epoch, std::move(data), record()));
    Operation& op = started_.back()->operation;
    if (refusal != nullptr) {
      op.refusal = std::make_unique<wire::Refusal>(std::uint16_t{0}, std::uint16_t{1}, refusal);
      op.set_no_input();
    }
    agree(fed_.context(), 0, epoch, op.record, op.refusal.get());
    exchange_.submit(op);
    return op;
  }
  void feed(int rank, const Gathered& m) {
    fed_.feed_bytes(rank, Direction::up, Priority::doubling, m.bytes());
  }
  void feed(int rank, std::uint64_t epoch, std::vector<Part> parts) {
    feed(rank, Gathered(epoch, std::move(parts)));
  }
  std::vector<HandFed::Sent> step() { return fed_.run(exchange_); }
  const std::vector<float>& data(std::size_t operation) const { return started_[operation]->data; }
  /// What is said of a batch from rank 3.
  std::string refusal_of(const Gathered& m) {
    feed(3, m);
    step();
    return fed_.failure();
  }

  HandFed fed_;
  GatherExchange exchange_;
  std::vector<std::unique_ptr<HandMade>> started_;
};

TEST_F(DoublingTest, TheFirstRoundNeedsNobody) {
  start(0);
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 1);
  EXPECT_EQ(sent[0].immediate,
            (Immediate{Immediate::Kind::message, {0, Direction::up, Priority::doubling}, 0}));
  EXPECT_THAT(parts_of(sent[0]), ElementsAre(kOwn));
}

TEST_F(DoublingTest, TheSecondRoundPassesOnWhatCame) {
  start(0);
  step();
  const Part third{0b10001, {5, 5, 5, 5, 6, 6, 6, 6}, 0, ""};
  feed(3, 0, {third});
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 2);
  EXPECT_THAT(parts_of(sent[0]), ElementsAre(kOwn, third));
}

// A sum in another order than that of the ranks has other bits.
TEST_F(DoublingTest, TheSumIsInTheOrderOfTheRanks) {
  Operation& op = start(0);
  step();
  feed(3, 0, {{0b00010, {-1e8f, -1e8f, 0.5f, 8}, 0, ""}});
  feed(2, 0, {{0b00010, {0.25f, 1, 1e8f, 16}, 0, ""}, {0b00011, {7, 7, 7, 7, 1e8f, 1e8f, -1e8f, 32}, 0, ""}});
  step();
  ASSERT_TRUE(op.finished());
  const auto sum = [](float a, float b, float c, float d) { return ((a + b) + c) + d; };
  EXPECT_THAT(std::vector(data(0).begin(), data(0).begin() + 8),
              ElementsAre(7, 7, 7, 7, sum(1, 1e8f, 0.25f, -1e8f), sum(2, 1e8f, 1, -1e8f),
                          sum(3, -1e8f, 1e8f, 0.5f), 4 + 32 + 16 + 8));
  EXPECT_TRUE(exchange_.idle());
}

TEST_F(DoublingTest, BatchesMayComeBeforeTheOperationHasBegunHere) {
  feed(2, 0, {{0b00010, {1, 1, 1, 1}, 0, ""}, kNothing});
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_THAT(exchange_.waiting_for().known, HasSubstr("rank(s) 0, 3 did not join"));
  feed(3, 0, {kNothing});
  step();
  Operation& op = start(0);
  EXPECT_THAT(step(), SizeIs(2)) << "both rounds at once";
  EXPECT_TRUE(op.finished());
  EXPECT_THAT(std::vector(data(0).begin() + 4, data(0).begin() + 8), ElementsAre(2, 3, 4, 5));
}

TEST_F(DoublingTest, NothingIsSummedBeforeTheLastBatchHasLeft) {
  for (std::uint64_t epoch = 0; epoch <= kSlots; ++epoch) {
    Operation& op = start(epoch);
    feed(3, epoch, {kNothing});
    feed(2, epoch, {kNothing, kNothing});
    step();
    EXPECT_EQ(op.finished(), epoch < kSlots) << "the channels of rank 1 and 2 are full in the end";
  }
  EXPECT_THAT(exchange_.waiting_for().suspected, HasSubstr("rank 1 (operation 4, slice 0)"));
  EXPECT_TRUE(fed_.context().credit(Priority::doubling, Direction::up, 1, 1));
  step();
  EXPECT_FALSE(started_.back()->operation.finished());
  EXPECT_TRUE(fed_.context().credit(Priority::doubling, Direction::up, 2, 1));
  step();
  EXPECT_TRUE(started_.back()->operation.finished());
}

TEST_F(DoublingTest, SlotsGoBackInWritesOfTheirOwn) {
  for (std::uint64_t epoch = 0; epoch < kSlots / 2; ++epoch) {
    start(epoch);
    feed(3, epoch, {kNothing});
    feed(2, epoch, {kNothing, kNothing});
  }
  while (exchange_.step()) {
  }
  std::vector<int> credited;
  for (const auto& s : fed_.take_sent()) {
    if (s.immediate.kind != Immediate::Kind::credit) continue;
    EXPECT_EQ(s.immediate.value, kSlots / 2);
    EXPECT_EQ(s.immediate.channel.priority, Priority::doubling);
    credited.push_back(s.peer);
  }
  EXPECT_THAT(credited, testing::UnorderedElementsAre(2, 3));
}

TEST_F(DoublingTest, ARefusalIsPassedOnAndToldHere) {
  Operation& op = start(0);
  step();
  const Part refused{0, {}, 1, "no memory is given for the result"};
  feed(3, 0, {refused});
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(parts_of(sent[0]), ElementsAre(kOwn, refused));
  feed(2, 0, {{0, {}, 2, "another one"}, kNothing});
  step();
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(op.failure()->text, "operation 0: rank 2 refused its request: another one")
      << "of several refusals it is that of the lowest rank";
  EXPECT_THAT(std::vector(data(0).begin() + 4, data(0).begin() + 8), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(fed_.failure(), "");
}

TEST_F(DoublingTest, TheOwnRefusalIsSent) {
  Operation& op = start(0, "no input set");
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(parts_of(sent[0]), ElementsAre(Part{0, {}, 1, "no input set"}));
  // What a rank says of its operation need not agree but for its layout, also if rank 3 passes it on.
  Gathered third(0, {{0b00010, {1, 1, 1, 1}, 0, ""}});
  third.record.tag = 7;
  feed(3, third);
  Gathered second(0, {kNothing, kNothing});
  second.record.tag = 7;
  feed(2, second);
  step();
  EXPECT_EQ(fed_.failure(), "");
  ASSERT_TRUE(op.finished());
  EXPECT_THAT(op.failure()->text, HasSubstr("rank 0 refused its request: no input set"));
}

TEST_F(DoublingTest, WhoIsMissingIsNamed) {
  start(0);
  step();
  EXPECT_THAT(exchange_.waiting_for().known, HasSubstr("by doubling): rank(s) 3 did not join"));
  EXPECT_EQ(exchange_.waiting_for().suspected, "rank 2 (operation 0, slice 0)");
  feed(3, 0, {kNothing});
  step();
  EXPECT_EQ(exchange_.waiting_for().known, "");
  EXPECT_EQ(exchange_.waiting_for().suspected, "rank 2 (operation 0, slice 0)");
}

// What a peer may send in place of what it should pass on, and what is said about it. What can be wrong with
// its own contribution, one_hop_test.cc has.
struct Malformed {
  const char* name;
  std::function<void(Gathered&)> spoil;
  const char* text;
};

class DoublingMalformedTest : public DoublingTest, public testing::WithParamInterface<Malformed> {};

TEST_P(DoublingMalformedTest, IsRefusedByName) {
  Operation& op = start(0);
  Gathered m(0, {kNothing, kNothing});
  GetParam().spoil(m);
  feed(3, 0, {kNothing});
  feed(2, m);
  step();
  EXPECT_THAT(fed_.failure(), testing::AllOf(HasSubstr("rank 2"), HasSubstr(GetParam().text)));
  EXPECT_FALSE(op.finished());
}

INSTANTIATE_TEST_SUITE_P(
    , DoublingMalformedTest,
    testing::Values(
        Malformed{"nothing", [](Gathered& m) { m.parts.pop_back(); }, "it passes on nothing"},
        Malformed{"magic", [](Gathered& m) { m.batch.magic = 1; }, "magic number"},
        Malformed{"version", [](Gathered& m) { m.batch.version = 4; }, "of another version"},
        Malformed{"section", [](Gathered& m) { m.batch.flags = 0; }, "flags are not those of a batch"},
        Malformed{"flags", [](Gathered& m) { m.batch.flags |= wire::kMore; },
                  "flags are not those of a batch"},
        Malformed{"tiles", [](Gathered& m) { m.batch.tiles = 1; }, "fields that a batch has not"},
        Malformed{"bitmap_bytes", [](Gathered& m) { m.batch.bitmap_bytes = 8; },
                  "fields that a batch has not"},
        Malformed{"epoch", [](Gathered& m) { m.batch.epoch = 1; }, "is of another operation"},
        Malformed{"sequence", [](Gathered& m) { m.batch.sequence = 1; }, "is of another operation"},
        Malformed{"more_ranks",
                  [](Gathered& m) {
                    m.parts.push_back(kNothing);
                    m.batch.entries = 2;
                  },
                  "not of as many ranks"},
        Malformed{"no_ranks", [](Gathered& m) { m.batch.entries = 0; }, "not of as many ranks"},
        Malformed{"too_long", [](Gathered& m) { m.batch.payload_bytes = 4000; }, "longer than its slot"},
        Malformed{"missing", [](Gathered& m) { m.batch.payload_bytes = 7; }, "a contribution is missing"},
        Malformed{"cut", [](Gathered& m) { m.batch.payload_bytes = 8; }, "longer than its message"},
        Malformed{"tail", [](Gathered& m) { m.tail.resize(8); }, "bytes behind its last contribution"},
        Malformed{"code", [](Gathered& m) { m.parts[1].refusal = 999; }, "error code does not exist"},
        Malformed{"reason",
                  [](Gathered& m) {
                    m.parts[1] = {0, {}, 1, std::string(241, 'x')};
                  },
                  "is too long"},
        Malformed{"behind", [](Gathered& m) { m.parts[1].bitmap = 1 << 5; }, "bits behind the last block"},
        Malformed{"too_little", [](Gathered& m) { m.parts[1].bitmap = 1; }, "not as long as its bitmap says"},
        Malformed{"too_much", [](Gathered& m) { m.parts[1].values = {1}; }, "not as long as its bitmap says"},
        Malformed{"refused",
                  [](Gathered& m) {
                    m.parts[1].refusal = 1;
                    m.parts[1].bitmap = 1;
                  },
                  "refused, and has blocks"},
        Malformed{"algorithm",
                  [](Gathered& m) {
                    m.header.epoch = m.batch.epoch = 1;
                    m.record.algorithm = wire::Algorithm::push;
                  },
                  "another priority"}),
    [](const auto& malformed) { return malformed.param.name; });

// What is wrong must not be passed on, or this rank would be blamed for it.
TEST_F(DoublingTest, WhatIsWrongIsNotPassedOn) {
  start(0);
  step();
  feed(3, 0, {{1 << 5, {}, 0, ""}});
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_THAT(fed_.failure(), HasSubstr("rank 3 sent a contribution to operation 0"));
}

TEST_F(DoublingTest, ABatchIsRefusedWhereNothingIsToBePassedOn) {
  start(0);
  EXPECT_THAT(refusal_of(Gathered(0, {kNothing, kNothing})), HasSubstr("rank 3"));
  EXPECT_THAT(fed_.failure(), HasSubstr("more than one section"));
}

TEST_F(DoublingTest, WhoPassesOnWrongBytesIsNamed) {
  start(0);
  feed(2, 0, {kNothing, {0b00001, {1, 2}, 0, ""}});
  step();
  EXPECT_EQ(
      fed_.failure(),
      "rank 2 sent a contribution of rank 1 to operation 0 slice 0 that can't be: its data is not as long "
      "as its bitmap says");
}

TEST_F(DoublingTest, AMessageComesOnce) {
  feed(3, 0, {kNothing});
  EXPECT_THAT(refusal_of(Gathered(0, {kNothing})), HasSubstr("it is out of order"));
}

TEST_F(DoublingTest, AMessageOfAnOperationThatIsOverIsRefused) {
  start(0);
  feed(3, 0, {kNothing});
  feed(2, 0, {kNothing, kNothing});
  step();
  ASSERT_TRUE(started_[0]->operation.finished());
  EXPECT_THAT(refusal_of(Gathered(0, {kNothing})), HasSubstr("it is out of order"));
}

TEST_F(DoublingTest, RanksThatDisagreeFindOut) {
  start(0);
  step();
  Gathered m(0, {kNothing});
  m.record.op = static_cast<std::uint8_t>(ReduceOp::max);
  EXPECT_THAT(refusal_of(m), HasSubstr("ranks disagree about operation 0"));
}

TEST_F(DoublingTest, ADirectWriteIsRefused) {
  exchange_.direct_arrived(1, 0);
  EXPECT_THAT(fed_.failure(), HasSubstr("sums nothing for this rank"));
}

class DoublingWindowTest : public DoublingTest {
 protected:
  DoublingWindowTest() : DoublingTest(4, 32) {}
};

TEST_F(DoublingWindowTest, AWindowIsUnderWay) {
  constexpr std::uint64_t kMost = engine::kGatherWindow;
  for (std::uint64_t epoch = 0; epoch < 2 * kMost; ++epoch) start(epoch);
  EXPECT_THAT(step(), SizeIs(kMost));
  for (std::uint64_t epoch = 0; epoch < 2 * kMost; ++epoch) feed(3, epoch, {kNothing});
  EXPECT_THAT(step(), SizeIs(kMost)) << "the second round of the same operations";
  EXPECT_EQ(fed_.failure(), "");
}

class DoublingOfFiveTest : public DoublingTest {
 protected:
  DoublingOfFiveTest() : DoublingTest(5) {}
};

// Ranks 1 and 2 get this rank's contribution in the first two rounds and through them. Rank 4 lacks only
// that.
TEST_F(DoublingOfFiveTest, TheLastRoundIsAsShortAsItCanBe) {
  start(0);
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].peer, 1);
  EXPECT_EQ(sent[1].peer, 4);
  EXPECT_THAT(parts_of(sent[1]), ElementsAre(kOwn));
}

class DoublingOfEightTest : public DoublingTest {
 protected:
  DoublingOfEightTest() : DoublingTest(8) {}
};

// A slot has room for one reason beside the sender's own, however many ranks have refused.
TEST_F(DoublingOfEightTest, OfSeveralRefusalsTheReasonOfTheLowestRankIsPassedOn) {
  Operation& op = start(0);
  const Part five{0, {}, 1, "five"}, six{0, {}, 2, "six"}, seven{0, {}, 1, "seven"};
  feed(7, 0, {seven});
  feed(6, 0, {six, five});
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_THAT(parts_of(sent[1]), ElementsAre(kOwn, seven));
  EXPECT_THAT(parts_of(sent[2]), ElementsAre(kOwn, Part{0, {}, 1, ""}, Part{0, {}, 2, ""}, five));
  feed(4, 0, {{0, {}, 1, ""}, {0, {}, 1, "three"}, kNothing, kNothing});
  step();
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(op.failure()->text, "operation 0: rank 3 refused its request: three");
}

}  // namespace
}  // namespace nzcl::test
