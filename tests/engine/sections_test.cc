// Messages of several sections: slices with little data travel together. Each test runs one engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using engine::Worker;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Direction;
using wire::Priority;

constexpr int kAggregator = 2;
constexpr std::uint64_t kCount = 200;  // floats, which do not fit an express slot and are one bulk slice

/// One slice's section: the given blocks of 4 floats each, where every element is `value`.
Message section(std::uint64_t operation, const std::vector<int>& blocks, float value) {
  Message m;
  m.header.flags = wire::kHasBitmap;
  m.header.epoch = m.header.sequence = operation;
  m.record = HandMade::record(kCount);
  m.bitmap = {0};
  for (const int b : blocks) set_bit(std::span(m.bitmap), static_cast<std::uint64_t>(b));
  m.payload.assign(blocks.size() * 4, value);
  return m;
}

struct WorkerSections : testing::Test {
  WorkerSections() : fed({.self = 0}), worker(fed.context(), Priority::bulk) {}
  HandMade& start(std::uint64_t epoch, int blocks) {
    std::vector<float> data(kCount, 0.0f);
    std::fill_n(data.begin() + 8, 4 * blocks, static_cast<float>(epoch + 1));
    started.push_back(std::make_unique<HandMade>(fed, epoch, std::move(data)));
    worker.submit(&started.back()->operation);
    return *started.back();
  }
  std::vector<HandFed::Sent> step() { return fed.run(worker); }
  HandFed fed;
  Worker worker;
  std::vector<std::unique_ptr<HandMade>> started;
};

TEST_F(WorkerSections, SlicesOfLittleDataTravelInOneMessage) {
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) start(epoch, 1);
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].message.header.sequence, 0u);
  EXPECT_THAT(sent[0].message.payload, ElementsAre(1, 1, 1, 1));
  ASSERT_THAT(sent[0].more, SizeIs(2));
  for (std::uint64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(sent[0].more[i].header.sequence, i + 1);
    EXPECT_EQ(sent[0].more[i].record.count, kCount);
    EXPECT_THAT(sent[0].more[i].bitmap, ElementsAre(0b100u));
    EXPECT_THAT(sent[0].more[i].payload, SizeIs(4));
    EXPECT_THAT(sent[0].more[i].payload, Each(static_cast<float>(i + 2)));
  }
}

TEST_F(WorkerSections, WhatDoesNotFitWhollyBeginsAMessage) {
  start(0, 3);   // a section of 160 bytes
  start(1, 48);  // 880 bytes, which do not fit behind it in a slot of 1 KiB
  start(2, 1);
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_THAT(sent[0].more, IsEmpty());
  EXPECT_EQ(sent[1].message.header.sequence, 1u);
  EXPECT_THAT(sent[1].message.payload, SizeIs(192));
  EXPECT_THAT(sent[1].more, IsEmpty())
      << "nothing can be composed behind a run that is gathered from the tensor";
  EXPECT_EQ(sent[2].message.header.sequence, 2u);
}

TEST_F(WorkerSections, ResultsOfOneMessageComplete) {
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) start(epoch, 1);
  step();
  fed.feed_sections(kAggregator, Direction::down,
                    {section(0, {0}, 5), section(1, {}, 0), section(2, {0, 3}, 7)}, Priority::bulk);
  step();
  EXPECT_EQ(fed.failure(), "");
  for (const auto& one : started) EXPECT_TRUE(one->operation.finished());
  EXPECT_EQ(started[0]->data[0], 5);
  EXPECT_EQ(started[1]->data[0], 0);
  EXPECT_EQ(started[2]->data[0], 7);
  EXPECT_EQ(started[2]->data[12], 7);
  EXPECT_FALSE(worker.busy());
}

TEST_F(WorkerSections, AnotherSectionThatIsNotThereIsRefused) {
  start(0, 1);
  step();
  fed.feed_sections(kAggregator, Direction::down, {section(0, {0}, 5)}, Priority::bulk, true);
  step();
  EXPECT_THAT(fed.failure(), HasSubstr("aggregator 0 sent a malformed result"));
}

struct AggregatorSections : testing::Test {
  AggregatorSections() : fed({.self = 2}), aggregator(fed.context(), Priority::bulk) {}
  void from(int rank, std::vector<Message> sections, bool more_at_end = false) {
    fed.feed_sections(rank, Direction::up, std::move(sections), Priority::bulk, more_at_end);
  }
  std::vector<HandFed::Sent> step() { return fed.run(aggregator); }
  HandFed fed;
  Aggregator aggregator;
};

TEST_F(AggregatorSections, ResultsThatAreReadyTogetherTravelTogether) {
  from(0, {section(0, {1}, 1), section(1, {2, 3}, 2), section(2, {}, 0)});
  EXPECT_THAT(step(), IsEmpty());
  from(1, {section(0, {1}, 10), section(1, {3}, 20)});
  const auto two = step();
  ASSERT_THAT(two, SizeIs(2)) << "one to each rank";
  for (const auto& sent : two) {
    EXPECT_THAT(sent.message.payload, ElementsAre(11, 11, 11, 11));
    ASSERT_THAT(sent.more, SizeIs(1)) << "the third slice waits for rank 1, the first two do not";
    EXPECT_THAT(sent.more[0].bitmap, ElementsAre(0b1100u));
    EXPECT_THAT(sent.more[0].payload, ElementsAre(2, 2, 2, 2, 22, 22, 22, 22));
  }
  from(1, {section(2, {5}, 30)});
  const auto last = step();
  ASSERT_THAT(last, SizeIs(2));
  for (const auto& sent : last) {
    EXPECT_THAT(sent.message.payload, ElementsAre(30, 30, 30, 30));
    EXPECT_THAT(sent.more, IsEmpty());
  }
  EXPECT_TRUE(aggregator.idle());
}

TEST_F(AggregatorSections, AReadyResultDoesNotWaitForOneWhoseDataIsStillToCome) {
  Message late = section(1, {2}, 2);
  const std::vector<float> data = std::exchange(late.payload, {});
  from(0, {section(0, {1}, 1), late});
  from(1, {section(0, {}, 0), section(1, {}, 0)});
  const auto first = step();
  ASSERT_FALSE(first.empty());
  EXPECT_THAT(first[0].message.payload, ElementsAre(1, 1, 1, 1));
  Message rest;
  rest.header.epoch = rest.header.sequence = 1;
  rest.payload = data;
  from(0, {rest});
  const auto second = step();
  ASSERT_THAT(second, SizeIs(2));
  EXPECT_THAT(second[0].message.payload, ElementsAre(2, 2, 2, 2));
  EXPECT_TRUE(aggregator.idle());
}

TEST_F(AggregatorSections, ASlotIsHeldUntilItsLastSectionIsSummed) {
  auto& channel = fed.context().channels(Priority::bulk, 0).receive_up;
  from(0, {section(0, {1}, 1), section(1, {2}, 2)});
  from(1, {section(0, {1}, 1)});
  step();
  EXPECT_EQ(channel.take_credit(), 0) << "its second section has not been summed";
  from(1, {section(1, {}, 0)});
  step();
  EXPECT_EQ(channel.take_credit(), 1);
}

TEST_F(AggregatorSections, SectionsWithoutEndAreRefused) {
  from(0, {section(0, {1}, 1)}, true);
  step();
  EXPECT_THAT(fed.failure(), HasSubstr("rank 0 sent a malformed contribution"));
}

TEST(AggregatorSectionsLimit, MoreSectionsThanThereMayBeAreRefused) {
  const auto failure = [](std::uint32_t sections) {
    HandFed fed({.self = 2, .slot_bytes = 4096});  // the slot has room for twice as many sections
    Aggregator aggregator(fed.context(), Priority::bulk);
    fed.feed_sections(0, Direction::up, std::vector<Message>(sections), Priority::bulk);
    fed.run(aggregator);
    return fed.failure();
  };
  EXPECT_EQ(failure(wire::kMaxSections), "");
  EXPECT_THAT(failure(wire::kMaxSections + 1), HasSubstr("rank 0 sent a malformed contribution"));
}

}  // namespace
}  // namespace nzcl::test
