// Bytes that no honest peer sends. Each is refused, before it can do any harm, by an error that names the
// peer and says what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using engine::Operation;
using engine::Worker;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using wire::Direction;
using wire::Priority;
using Change = std::function<void(Message&)>;

Message contribution(std::uint64_t epoch = 0) {
  Message m;
  m.header.flags = wire::kHasBitmap;
  m.header.epoch = m.header.sequence = epoch;
  m.record = HandMade::record();  // the tensor has five blocks of 16 bytes
  m.bitmap = {0b00011};
  m.payload = std::vector<float>(8, 1.0f);
  return m;
}

/// The error of an aggregator that gets a contribution of rank 1 with this change; "" if it takes it.
std::string refused(const Change& change, HandFed::Setup setup = {.self = 2}) {
  HandFed fed(setup);
  Aggregator aggregator(fed.context(), Priority::express);
  Message m = contribution();
  change(m);
  fed.feed(1, Direction::up, m);
  aggregator.step();
  EXPECT_THAT(fed.take_sent(), IsEmpty());
  return fed.failure();
}

TEST(HostileRank, ShapesThatWrapAreRefused) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;
  const auto larger = AllOf(StartsWith("rank 1 sent a malformed bitmap"), HasSubstr("larger than memory"));
  // An element has four bytes, so the sizes of the tensor and of a block would both wrap to zero.
  EXPECT_THAT(refused([](Message& m) { m.record.count = m.record.block_elems = kHuge; }), larger);
  EXPECT_THAT(refused([](Message& m) { m.record.count = kHuge; }), larger);
  EXPECT_THAT(refused([](Message& m) { m.record.block_elems = kHuge; }), larger);
  EXPECT_THAT(refused([](Message& m) { m.record.count = ~std::uint64_t{0}; }), larger);
  EXPECT_THAT(refused([](Message& m) { m.record.count = kHuge / 4; }), larger) << "too many blocks";
  EXPECT_THAT(refused([](Message& m) {
                m.record.count = kHuge / 4;
                m.record.block_elems = std::uint64_t{1} << 21;
              }),
              HasSubstr("rank 1 sent a bitmap"));
}

TEST(HostileRank, RecordsOfNothingThatExistsAreRefused) {
  const auto malformed = StartsWith("rank 1 sent a malformed bitmap (sequence 0): ");
  EXPECT_THAT(refused([](Message& m) { m.record.type = 200; }), AllOf(malformed, HasSubstr("type")));
  EXPECT_THAT(refused([](Message& m) { m.record.op = 200; }), AllOf(malformed, HasSubstr("reduction")));
  EXPECT_THAT(refused([](Message& m) { m.record.packed_result = 2; }), AllOf(malformed, HasSubstr("form")));
  EXPECT_THAT(refused([](Message& m) { m.record.output_address = ~std::uint64_t{0} - 79; }),
              AllOf(malformed, HasSubstr("its output goes beyond all addresses")));
  EXPECT_EQ(refused([](Message& m) { m.record.output_address = ~std::uint64_t{0} - 80; }), "");
}

TEST(HostileRank, CollectivesThatCannotBeAreRefused) {
  const auto malformed = StartsWith("rank 1 sent a malformed bitmap (sequence 0): ");
  EXPECT_THAT(refused([](Message& m) { m.record.collective = static_cast<wire::Collective>(5); }),
              AllOf(malformed, HasSubstr("its collective does not exist")));
  EXPECT_THAT(refused([](Message& m) {
                m.record.collective = wire::Collective::broadcast;
                m.record.root_or_density = 2;
              }),
              AllOf(malformed, HasSubstr("its root is no rank")));
  EXPECT_THAT(refused([](Message& m) {
                m.record.collective = wire::Collective::allgather;
                m.record.root_or_density = 1;
              }),
              AllOf(malformed, HasSubstr("its collective has neither root nor density")));
  EXPECT_THAT(refused([](Message& m) { m.record.algorithm = wire::Algorithm::merging; }),
              AllOf(malformed, HasSubstr("has no owners")));
  EXPECT_THAT(refused([](Message& m) { m.record.chunk_count = 21; }),
              AllOf(malformed, HasSubstr("its chunk")));
  EXPECT_THAT(refused([](Message& m) {
                m.record.collective = wire::Collective::allgather;
                m.record.count = m.record.chunk_count = std::uint64_t{1} << 50;
                m.record.block_elems = std::uint64_t{1} << 20;
              }),
              AllOf(malformed, HasSubstr("chunks are larger than memory")));
}

/// What rank 1 sends to slice 1 of a collective in which rank 0 alone contributes to that slice.
std::string refused_in(wire::Collective collective, bool with_blocks) {
  HandFed fed({.self = 2});
  Aggregator aggregator(fed.context(), Priority::bulk);
  Message m = contribution();
  m.header.slice = m.header.sequence = 1;  // slice 0 is the meeting
  m.record.collective = collective;
  m.record.chunk_count = collective == wire::Collective::allgather ? m.record.count : 0;
  if (!with_blocks) m.bitmap = {0}, m.payload.clear();
  fed.feed(1, Direction::up, m, Priority::bulk);
  aggregator.step();
  return fed.failure();
}

TEST(HostileRank, BlocksOfARankThatDoesNotContributeAreRefused) {
  for (const auto collective : {wire::Collective::broadcast, wire::Collective::allgather}) {
    EXPECT_EQ(refused_in(collective, false), "");
    EXPECT_THAT(refused_in(collective, true), AllOf(StartsWith("rank 1 contributes blocks to operation 0, "),
                                                    HasSubstr("slice 1, which is not its part in it")));
  }
  EXPECT_EQ(refused_in(wire::Collective::reduce, true), "") << "to which every rank contributes";
}

TEST(HostileRank, BitsBehindTheLastBlockAreRefused) {
  for (const int bit : {5, 63}) {
    EXPECT_EQ(refused([bit](Message& m) { m.bitmap[0] |= std::uint64_t{1} << bit; }),
              "rank 1 sent a bitmap with bits behind the last block of operation 0 slice 0");
  }
}

TEST(HostileRank, HeadersThatContradictThemselvesAreRefused) {
  const auto malformed = StartsWith("rank 1 sent a malformed contribution (sequence 0): ");
  EXPECT_THAT(refused([](Message& m) { m.header.flags |= 128; }),
              AllOf(malformed, HasSubstr("unknown flags")));
  EXPECT_THAT(refused([](Message& m) { m.header.flags |= wire::kOver; }),
              AllOf(malformed, HasSubstr("a flag that only results have")));
  EXPECT_THAT(refused([](Message& m) { m.header.flags |= wire::kDirect; }),
              AllOf(malformed, HasSubstr("only results have")));
  EXPECT_THAT(refused([](Message& m) { m.header.direct_writes = 1; }),
              AllOf(malformed, HasSubstr("counts direct writes")));
  EXPECT_THAT(refused([](Message& m) { m.header.flags = 0; }),
              AllOf(malformed, HasSubstr("bytes of a bitmap")));
  EXPECT_THAT(refused([](Message& m) { m.header.bitmap_bytes = m.header.payload_bytes = 0xffffffff; }),
              AllOf(malformed, HasSubstr("longer than its slot")));
}

TEST(HostileRank, RefusalsThatCannotBeAreRefused) {
  const auto refusal = [](const Change& change) {
    return refused([&](Message& m) {
      m.header.flags |= wire::kRefused;
      m.header.refusal_code = static_cast<std::uint16_t>(ErrorCode::invalid_argument);
      m.bitmap = {0};
      m.payload = {0, 0};
      change(m);
    });
  };
  const auto malformed = StartsWith("rank 1 sent a malformed contribution (sequence 0): ");
  EXPECT_EQ(refusal([](Message&) {}), "");
  EXPECT_EQ(refusal([](Message& m) { m.payload.clear(); }), "") << "a refusal may have no reason";
  EXPECT_EQ(refusal([](Message& m) { m.bitmap = {1}; }),
            "rank 1 refused operation 0 slice 0, and contributes blocks to it");
  EXPECT_THAT(refusal([](Message& m) { m.payload.resize(61); }), AllOf(malformed, HasSubstr("too long")));
  for (const int code : {0, 13, 65535}) {
    EXPECT_THAT(refusal([code](Message& m) { m.header.refusal_code = static_cast<std::uint16_t>(code); }),
                AllOf(malformed, HasSubstr("its error code does not exist")));
  }
  EXPECT_THAT(refusal([](Message& m) {
                m.header.flags = wire::kRefused;
                m.bitmap.clear();
              }),
              AllOf(malformed, HasSubstr("cannot be a refusal")));
}

TEST(HostileRank, ARefusalOfAnotherTensorIsADisagreement) {
  HandFed fed({.self = 2});
  Aggregator aggregator(fed.context(), Priority::express);
  fed.feed(0, Direction::up, contribution());
  Message m = contribution();
  m.header.flags |= wire::kRefused;
  m.header.refusal_code = 1;
  m.record.count = 8;
  m.bitmap = {0};
  m.payload = {0};
  std::memcpy(m.payload.data(), "\xff why", 4);  // not UTF-8, as a peer may send any bytes
  fed.feed(1, Direction::up, m);
  aggregator.step();
  EXPECT_THAT(fed.failure(), AllOf(StartsWith("ranks disagree about operation 0"),
                                   HasSubstr("a request that rank 1 refused (\uFFFD wh) on rank 1")));
}

TEST(HostileRank, SlicesThatAreNotThisOwnersAreRefused) {
  const HandFed::Setup two{.self = 2, .dedicated = 2};
  std::uint64_t epoch = 0;
  while (HandFed(two).layout(epoch, HandMade::record()).owner(0) == 0) ++epoch;
  EXPECT_THAT(refused([&](Message& m) { m.header.epoch = epoch; }, two),
              AllOf(StartsWith("rank 1 sent a bitmap that does not fit"), HasSubstr("another owner")));
  EXPECT_THAT(refused([](Message& m) { m.header.slice = ~std::uint64_t{0}; }), HasSubstr("no such slice"));
  EXPECT_THAT(refused([](Message& m) { m.header.sequence = ~std::uint64_t{0}; }),
              HasSubstr("that slice may not have begun yet"));
  EXPECT_THAT(refused([](Message& m) { m.record.count = 1 << 20; }), HasSubstr("of another priority"));
}

TEST(HostileRank, DataThatNoBitmapPromisesIsRefused) {
  const auto after_bitmap = [](const Change& change) {
    HandFed fed({.self = 2});
    Aggregator aggregator(fed.context(), Priority::express);
    Message first = contribution(), data;
    data.payload = std::exchange(first.payload, {});
    fed.feed(1, Direction::up, first);
    change(data);
    fed.feed(1, Direction::up, data);
    aggregator.step();
    return fed.failure();
  };
  const auto data = StartsWith("rank 1 sent data of operation ");
  EXPECT_EQ(after_bitmap([](Message&) {}), "");
  EXPECT_THAT(after_bitmap([](Message& m) { m.header.sequence = 1; }),
              AllOf(data, HasSubstr("no bitmap came before it")));
  EXPECT_THAT(after_bitmap([](Message& m) { m.header.sequence = 16; }),
              AllOf(data, HasSubstr("no bitmap came before it")));
  EXPECT_THAT(after_bitmap([](Message& m) { m.header.slice = 1; }), AllOf(data, HasSubstr("another slice")));
  EXPECT_THAT(after_bitmap([](Message& m) { m.header.epoch = 1; }), AllOf(data, HasSubstr("another slice")));
  EXPECT_THAT(after_bitmap([](Message& m) { m.header.stream_offset = 16; }),
              AllOf(data, HasSubstr("out of order")));
  EXPECT_THAT(after_bitmap([](Message& m) { m.header.stream_offset = ~std::uint64_t{0}; }),
              AllOf(data, HasSubstr("out of order")));
  EXPECT_THAT(after_bitmap([](Message& m) { m.payload.push_back(1); }), AllOf(data, HasSubstr("it is more")));
  EXPECT_THAT(after_bitmap([](Message& m) { m.header.payload_bytes = 7; }),
              AllOf(data, HasSubstr("within an element")));
}

// Operations with equal epochs modulo kMaxOperations share an entry of a table. A message of another
// operation in between must not make the aggregator forget the record that the slice was begun with: a
// smaller tensor would then be summed by the layout of the larger one.
TEST(HostileRank, ASliceKeepsTheShapeThatItWasBegunWith) {
  HandFed fed({.self = 2});
  Aggregator aggregator(fed.context(), Priority::express);
  fed.feed(1, Direction::up, contribution(0));
  Message other = contribution(engine::kMaxOperations);
  other.header.sequence = 1;
  fed.feed(1, Direction::up, other);
  Message smaller = contribution(0);
  smaller.record.count = 8;
  fed.feed(0, Direction::up, smaller);
  aggregator.step();
  aggregator.step();
  EXPECT_THAT(fed.failure(), AllOf(StartsWith("ranks disagree"), HasSubstr("count 8"), HasSubstr("rank 0")));
}

// --- Results

struct HostileAggregator {
  explicit HostileAggregator(bool ordered = false)
      : fed({.self = 0, .direct_bytes = 16, .ordered = ordered}), worker(fed.context(), Priority::express) {
    std::vector<float> data(20, 0.0f);
    std::iota(data.begin(), data.begin() + 8, 1.0f);
    started = std::make_unique<HandMade>(fed, 0, std::move(data));
    worker.submit(&started->operation);
  }
  static Message result() {
    Message m;
    m.header.flags = wire::kHasBitmap;
    m.bitmap = {0b00011};
    m.payload = std::vector<float>(8, 1.0f);
    return m;
  }
  static Message notice(std::uint32_t writes) {
    Message m = result();
    m.payload.clear();
    m.header.flags |= wire::kDirect;
    m.header.direct_writes = writes;
    return m;
  }
  std::string failure_after(const std::vector<Message>& messages) {
    while (worker.step()) {
    }
    for (const Message& m : messages) fed.feed(2, Direction::down, m);
    while (worker.step()) {
    }
    return fed.failure();
  }
  HandFed fed;
  Worker worker;
  std::unique_ptr<HandMade> started;
};

std::string refused_result(const Change& change) {
  HostileAggregator t;
  Message m = HostileAggregator::result();
  change(m);
  const std::string failure = t.failure_after({m});
  EXPECT_EQ(t.started->operation.finished(), failure.empty());
  return failure;
}

TEST(HostileAggregator, RefusalsThatCannotBeAreRefused) {
  const auto refusal = [](const Change& change) {
    return refused_result([&](Message& m) {
      m.header.flags = wire::kRefused;
      m.header.refusal_code = static_cast<std::uint16_t>(ErrorCode::invalid_argument);
      m.header.refused_by = 1;
      m.bitmap.clear();
      m.payload = {0, 0};
      change(m);
    });
  };
  const auto malformed = StartsWith("aggregator 0 sent a malformed result (sequence 0): ");
  EXPECT_EQ(refusal([](Message&) {}), "");
  EXPECT_EQ(refusal([](Message& m) { m.header.refused_by = 2; }),
            "aggregator 0 sent a refusal that can't be for operation 0 slice 0");
  EXPECT_THAT(refusal([](Message& m) { m.header.refusal_code = 0; }),
              AllOf(malformed, HasSubstr("its error code does not exist")));
  EXPECT_THAT(refusal([](Message& m) { m.payload.resize(61); }), AllOf(malformed, HasSubstr("too long")));
  EXPECT_THAT(refusal([](Message& m) { m.header.flags |= wire::kDirect; }), malformed);
}

TEST(HostileAggregator, BitsBehindTheLastBlockAreRefused) {
  for (const int bit : {5, 63}) {
    EXPECT_EQ(refused_result([bit](Message& m) {
                m.bitmap[0] = std::uint64_t{1} << bit;
                m.payload.resize(4);
              }),
              "aggregator 0 sent a union with bits behind the last block of operation 0 slice 0");
  }
}

TEST(HostileAggregator, HeadersThatContradictThemselvesAreRefused) {
  const auto malformed = StartsWith("aggregator 0 sent a malformed result (sequence 0): ");
  EXPECT_EQ(refused_result([](Message&) {}), "");
  EXPECT_THAT(refused_result([](Message& m) { m.header.flags |= 128; }),
              AllOf(malformed, HasSubstr("unknown flags")));
  EXPECT_THAT(refused_result([](Message& m) { m.header.flags |= wire::kOver; }),
              AllOf(malformed, HasSubstr("its result is for others, and brings one")));
  EXPECT_THAT(refused_result([](Message& m) {
                m.header.flags = wire::kOver;
                m.bitmap.clear();
                m.payload.clear();
              }),
              "aggregator 0 sent no result of operation 0 slice 0");
  EXPECT_THAT(refused_result([](Message& m) { m.header.flags |= wire::kDirect; }),
              AllOf(malformed, HasSubstr("written in place, and carries some")));
  EXPECT_THAT(refused_result([](Message& m) { m.header.direct_writes = 3; }),
              AllOf(malformed, HasSubstr("counts direct writes")));
  EXPECT_THAT(refused_result([](Message& m) { m.header.version = 1; }),
              AllOf(malformed, HasSubstr("another version")));
  EXPECT_THAT(refused_result([](Message& m) { m.header.bitmap_bytes = m.header.payload_bytes = 0xffffffff; }),
              AllOf(malformed, HasSubstr("longer than its slot")));
}

TEST(HostileAggregator, CountsOfDirectWritesThatCannotBeAreRefused) {
  using T = HostileAggregator;
  const auto most =
      static_cast<std::uint32_t>(T(false).fed.context().config.announced_writes(Priority::express));
  EXPECT_EQ(T().failure_after({T::notice(most)}), "");
  EXPECT_THAT(
      T().failure_after({T::notice(most + 1)}),
      AllOf(StartsWith("aggregator 0 sent a result"), HasSubstr("more direct writes than there may be")));
  EXPECT_EQ(T(true).failure_after({T::notice(most + 1)}), "")
      << "they are not counted where writes are ordered";
  EXPECT_THAT(T().failure_after({T::notice(2), T::notice(0)}), HasSubstr("was there already"));
  Message part = T::result();
  part.payload.resize(4);
  EXPECT_THAT(T().failure_after({part, T::notice(0)}), HasSubstr("not what follows"));
  Message late = T::notice(0);
  late.header.stream_offset = 16;
  EXPECT_THAT(T().failure_after({part, late}), HasSubstr("a part of it came in messages"));
}

TEST(HostileAggregator, DirectWritesThatCannotBeAreRefused) {
  using T = HostileAggregator;
  T other;
  other.failure_after({});
  other.worker.on_direct(2, engine::kWindow);  // the same window index as sequence 0
  EXPECT_EQ(other.fed.failure(), "aggregator 0 announced a direct write for a slice that is not running");
  T too_many;
  too_many.failure_after({});
  const std::uint64_t most = too_many.fed.context().config.announced_writes(Priority::express);
  for (std::uint64_t i = 0; i < most; ++i) too_many.worker.on_direct(2, 0);
  EXPECT_EQ(too_many.fed.failure(), "");
  too_many.worker.on_direct(2, 0);
  EXPECT_EQ(too_many.fed.failure(), "aggregator 0 announced a direct write too many");
  T packed;
  packed.failure_after({});
  packed.worker.on_direct(2, 0);
  EXPECT_THAT(packed.failure_after({T::result()}), HasSubstr("and it came in messages"));
  EXPECT_FALSE(packed.started->operation.finished());
  T more;
  more.failure_after({});
  more.worker.on_direct(2, 0);
  more.worker.on_direct(2, 0);
  EXPECT_THAT(more.failure_after({T::notice(1)}), HasSubstr("more direct writes came than it counts"));
  T ordered(true);
  ordered.failure_after({});
  ordered.worker.on_direct(2, 0);
  EXPECT_THAT(ordered.fed.failure(), HasSubstr("too many"));
}

// If the result were taken, the operation would be finished and its memory freed while the worker still has
// to compose messages from it.
TEST(HostileAggregator, AResultBeforeAllWasSentIsRefused) {
  HandFed fed({.self = 0, .slot_bytes = 512});
  Worker worker(fed.context(), Priority::bulk);
  HandMade large(fed, 0, std::vector<float>(2048, 1.0f));
  worker.submit(&large.operation);
  while (worker.step()) {
  }
  Message m;
  m.header.flags = wire::kHasBitmap;
  m.bitmap.assign(2048 / 4 / 64, 0);
  fed.feed(2, Direction::down, m, Priority::bulk);
  worker.step();
  EXPECT_EQ(fed.failure(),
            "aggregator 0 sent a result that can't be for operation 0 slice 0: it is there before this rank "
            "has sent its part");
  EXPECT_FALSE(large.operation.finished());
}

}  // namespace
}  // namespace nzcl::test
