// The doubling exchange of rank 0, with the other ranks played by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/exchange/doubling/doubling_exchange.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::DoublingExchange;
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

struct BatchMessage {
  wire::Header header;
  wire::OperationRecord record = test::record();
  std::vector<Part> parts;
  Bytes tail;  // behind the last contribution

  BatchMessage(std::uint64_t epoch, std::vector<Part> all) : parts(std::move(all)) {
    header = {.flags = wire::kHasBitmap | wire::kBatch, .epoch = epoch, .sequence = epoch};
    header.bitmap_bytes = 8;
    header.entries = static_cast<std::uint16_t>(parts.size());
  }
  Bytes bytes() const {
    Bytes payload;
    for (const Part& part : parts) {
      const std::size_t n = part.refusal != 0 ? part.reason.size() : part.values.size() * 4;
      append(payload, wire::BatchEntry{static_cast<std::uint32_t>(n), part.refusal, 0});
      append(payload, part.bitmap);
      for (const float v : part.values) append(payload, v);
      payload.insert(payload.end(), part.reason.begin(), part.reason.end());
      payload.resize((payload.size() + 7) / 8 * 8);
    }
    payload.insert(payload.end(), tail.begin(), tail.end());
    wire::Header h = header;
    if (h.payload_bytes == 0) h.payload_bytes = static_cast<std::uint32_t>(payload.size());
    Bytes all;
    append(all, h);
    append(all, record);
    all.insert(all.end(), payload.begin(), payload.end());
    return all;
  }
};

/// Reads a batch that the exchange has sent back into its parts.
std::vector<Part> parts_of(const Message& m) {
  Bytes payload;
  for (const float v : m.payload) append(payload, v);
  std::vector<Part> parts;
  std::size_t at = 0;
  for (int i = 0; i < m.header.entries; ++i) {
    wire::BatchEntry entry;
    Part part;
    std::memcpy(&entry, payload.data() + at, sizeof entry);
    std::memcpy(&part.bitmap, payload.data() + at + 8, 8);
    const auto* begin = payload.data() + at + 16;
    part.refusal = entry.refusal_code;
    if (part.refusal != 0) {
      part.reason.assign(reinterpret_cast<const char*>(begin), entry.payload_bytes);
    } else {
      part.values.resize(entry.payload_bytes / 4);
      std::memcpy(part.values.data(), begin, entry.payload_bytes);
    }
    parts.push_back(part);
    at += wire::entry_bytes(8, entry.payload_bytes);
  }
  EXPECT_EQ(at, m.header.payload_bytes);
  return parts;
}

const Part kOwn{0b00010, {1, 2, 3, 4}, 0, ""};
const Part kNothing{};

class DoublingTest : public testing::Test {
 protected:
  explicit DoublingTest(int workers = 4, std::uint32_t slots = kSlots)
      : fed_({.self = 0, .workers = workers, .dedicated = 0, .slots = slots, .doubling = true}),
        exchange_(fed_.context()) {}

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
    exchange_.submit(op);
    return op;
  }
  void feed(int rank, const BatchMessage& m) {
    fed_.feed_bytes(rank, Direction::up, Priority::doubling, m.bytes());
  }
  void feed(int rank, std::uint64_t epoch, std::vector<Part> parts) {
    feed(rank, BatchMessage(epoch, std::move(parts)));
  }
  std::vector<HandFed::Sent> step() { return fed_.run(exchange_); }
  const std::vector<float>& data(std::size_t operation) const { return started_[operation]->data; }
  /// What is said of a batch from rank 3.
  std::string refusal_of(const BatchMessage& m) {
    feed(3, m);
    step();
    return fed_.failure();
  }

  HandFed fed_;
  DoublingExchange exchange_;
  std::vector<std::unique_ptr<HandMade>> started_;
};

TEST_F(DoublingTest, TheFirstRoundNeedsNobody) {
  start(0);
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 1);
  EXPECT_EQ(sent[0].immediate,
            (Immediate{Immediate::Kind::message, {0, Direction::up, Priority::doubling}, 0}));
  EXPECT_EQ(sent[0].message.header.flags, wire::kHasBitmap | wire::kBatch);
  EXPECT_THAT(parts_of(sent[0].message), ElementsAre(kOwn));
}

TEST_F(DoublingTest, TheSecondRoundPassesOnWhatCame) {
  start(0);
  step();
  const Part third{0b10001, {5, 5, 5, 5, 6, 6, 6, 6}, 0, ""};
  feed(3, 0, {third});
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, 2);
  EXPECT_THAT(parts_of(sent[0].message), ElementsAre(kOwn, third));
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
  EXPECT_THAT(parts_of(sent[0].message), ElementsAre(kOwn, refused));
  feed(2, 0, {{0, {}, 2, "another one"}, kNothing});
  step();
  ASSERT_TRUE(op.finished());
  EXPECT_EQ(op.failure()->text, "operation 0: rank 2 refused its request: another one")
      << "of several refusals it is that of the lowest rank";
  EXPECT_THAT(std::vector(data(0).begin() + 4, data(0).begin() + 8), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(fed_.failure(), "");
}

TEST_F(DoublingTest, TheOwnRefusalIsSent) {
  Operation& op = start(0, "input is null");
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(parts_of(sent[0].message), ElementsAre(Part{0, {}, 1, "input is null"}));
  // What a rank says of its operation need not agree but for its layout, also if rank 3 passes it on.
  BatchMessage third(0, {{0b00010, {1, 1, 1, 1}, 0, ""}});
  third.record.tag = 7;
  feed(3, third);
  BatchMessage second(0, {kNothing, kNothing});
  second.record.tag = 7;
  feed(2, second);
  step();
  EXPECT_EQ(fed_.failure(), "");
  ASSERT_TRUE(op.finished());
  EXPECT_THAT(op.failure()->text, HasSubstr("rank 0 refused its request: input is null"));
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

TEST_F(DoublingTest, MalformedBatchesAreRefusedByName) {
  const auto with = [](const std::function<void(BatchMessage&)>& change) {
    BatchMessage m(0, {kNothing});
    change(m);
    return m;
  };
  const std::vector<std::pair<BatchMessage, const char*>> cases{
      {with([](BatchMessage& m) { m.header.magic = 1; }), "magic number"},
      {with([](BatchMessage& m) { m.header.version = 4; }), "of another version"},
      {with([](BatchMessage& m) { m.header.flags = wire::kHasBitmap; }), "flags are not those of a batch"},
      {with([](BatchMessage& m) { m.header.flags |= wire::kMore; }), "flags are not those of a batch"},
      {with([](BatchMessage& m) { m.header.tiles = 1; }), "fields that a batch has not"},
      {with([](BatchMessage& m) { m.header.payload_bytes = 4000; }), "longer than its slot"},
      {with([](BatchMessage& m) { m.header.payload_bytes = 7; }), "a contribution is missing"},
      {with([](BatchMessage& m) { m.header.payload_bytes = 8; }), "longer than its message"},
      {with([](BatchMessage& m) {
         m.parts.push_back(kNothing);
         m.header.entries = 2;
       }),
       "not of as many ranks"},
      {with([](BatchMessage& m) { m.header.entries = 0; }), "not of as many ranks"},
      {with([](BatchMessage& m) { m.tail.resize(8); }), "bytes behind its last contribution"},
      {with([](BatchMessage& m) { m.parts[0].refusal = 999; }), "error code does not exist"},
      {with([](BatchMessage& m) {
         m.parts[0] = {0, {}, 1, std::string(241, 'x')};
       }),
       "is too long"},
      {with([](BatchMessage& m) { m.parts[0].bitmap = 1 << 5; }), "bits behind the last block"},
      {with([](BatchMessage& m) { m.parts[0].bitmap = 1; }), "not as long as its bitmap says"},
      {with([](BatchMessage& m) { m.parts[0].values = {1}; }), "not as long as its bitmap says"},
      {with([](BatchMessage& m) {
         m.parts[0].refusal = 1;
         m.parts[0].bitmap = 1;
       }),
       "refused, and has blocks"},
      {with([](BatchMessage& m) { m.header.bitmap_bytes = 16; }), "longer than its message"},
      {with([](BatchMessage& m) { m.header.bitmap_bytes = 0; }), "its length is another"},
      {with([](BatchMessage& m) { m.header.slice = 1; }), "there is no such slice"},
      {with([](BatchMessage& m) { m.header.sequence = engine::kWindow; }), "may not have begun yet"},
      {with([](BatchMessage& m) { m.record.algorithm = static_cast<wire::Algorithm>(9); }),
       "algorithm does not exist"},
      {with([](BatchMessage& m) { m.record.algorithm = wire::Algorithm::push; }), "another priority"},
      {with([](BatchMessage& m) { m.record.type = 99; }), "element type does not exist"},
      {with([](BatchMessage& m) { m.record.count = std::uint64_t{1} << 61; }), "memory can be"},
      {with([](BatchMessage& m) { m.record.count = 100000; }), "another priority"},
  };
  for (const auto& [message, text] : cases) {
    HandFed fed({.self = 0, .workers = 4, .dedicated = 0, .slots = kSlots, .doubling = true});
    DoublingExchange exchange(fed.context());
    fed.feed_bytes(3, Direction::up, Priority::doubling, message.bytes());
    while (!fed.context().failure && exchange.step()) {
    }
    EXPECT_THAT(fed.failure(), testing::AllOf(HasSubstr("rank 3"), HasSubstr(text)));
  }
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

TEST_F(DoublingTest, ABatchComesOnce) {
  feed(3, 0, {kNothing});
  EXPECT_THAT(refusal_of(BatchMessage(0, {kNothing})), HasSubstr("it came before"));
}

TEST_F(DoublingTest, ABatchOfAnOperationThatIsOverIsRefused) {
  start(0);
  feed(3, 0, {kNothing});
  feed(2, 0, {kNothing, kNothing});
  step();
  ASSERT_TRUE(started_[0]->operation.finished());
  EXPECT_THAT(refusal_of(BatchMessage(0, {kNothing})), HasSubstr("that slice is over"));
}

TEST_F(DoublingTest, RanksThatDisagreeFindOut) {
  start(0);
  step();
  BatchMessage m(0, {kNothing});
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

// As in the one-hop exchange, another rank may be as far ahead of this one as this one is of a third.
TEST_F(DoublingWindowTest, HalfAWindowIsUnderWay) {
  for (std::uint64_t epoch = 0; epoch < engine::kWindow; ++epoch) start(epoch);
  EXPECT_THAT(step(), SizeIs(engine::kDoublingWindow));
  for (std::uint64_t epoch = 0; epoch < engine::kWindow; ++epoch) feed(3, epoch, {kNothing});
  EXPECT_THAT(step(), SizeIs(engine::kDoublingWindow)) << "the second round of the same operations";
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
  EXPECT_THAT(parts_of(sent[1].message), ElementsAre(kOwn));
}

TEST(DoublingRounds, EveryRankGetsEveryContributionOnce) {
  for (int ranks = 1; ranks <= 70; ++ranks) {
    int have = 1;
    for (int k = 0; k < engine::doubling_rounds(ranks); ++k) {
      EXPECT_EQ(have, 1 << k)
          << "what a rank has before round k are its own and those of the ranks before it";
      EXPECT_LE(engine::entries_in_round(ranks, k), have);
      EXPECT_GT(engine::entries_in_round(ranks, k), 0);
      EXPECT_EQ(engine::round_of_distance(ranks, 1 << k), k);
      have += engine::entries_in_round(ranks, k);
    }
    EXPECT_EQ(have, ranks);
  }
}

}  // namespace
}  // namespace nzcl::test
