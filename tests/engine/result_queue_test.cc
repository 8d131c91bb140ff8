// A queue of results that each of several receivers takes at its own pace.
#include "runtime/exchange/push/result_queue.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

namespace nzcl::engine {
namespace {

TEST(ResultQueueTest, EveryReceiverTakesEveryResultInOrder) {
  ResultQueue queue(3, {0, 1});
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.next(0), nullptr);
  std::uint64_t taken[2] = {0, 0};
  std::uint64_t put = 0;
  // Receiver 0 takes each result at once, and receiver 1 takes three at a time. The queue wraps around
  // several times.
  while (put < 9) {
    queue.push_back({.staging = static_cast<StagingPool::Index>(put), .bytes = 64, .epoch = put});
    ++put;
    ASSERT_NE(queue.next(0), nullptr);
    EXPECT_EQ(queue.next(0)->epoch, taken[0]++);
    EXPECT_FALSE(queue.take(0)) << "receiver 1 has not had it";
    EXPECT_EQ(queue.next(0), nullptr);
    EXPECT_FALSE(queue.empty());
    EXPECT_EQ(queue.room() == 0, put % 3 == 0);
    if (queue.room() > 0) continue;
    while (const ResultQueue::Result* next = queue.next(1)) {
      EXPECT_EQ(next->staging, taken[1]++);
      EXPECT_TRUE(queue.take(1)) << "the last one to want it";
    }
    EXPECT_TRUE(queue.empty());
  }
  EXPECT_EQ(taken[1], put);
}

/// Compares the queue with a model that has a separate queue for every receiver. Results are for all of them,
/// for one, or for all but one.
RC_GTEST_PROP(ResultQueue, IsAQueueForEveryReceiver, ()) {
  const auto capacity = *rc::gen::inRange<std::size_t>(1, 9);
  const auto receivers = *rc::gen::inRange<std::size_t>(1, 7);
  std::vector<std::uint16_t> ranks(receivers);
  for (std::size_t i = 0; i < receivers; ++i) ranks[i] = static_cast<std::uint16_t>(10 * i + 3);
  ResultQueue queue(capacity, ranks);
  std::vector<std::deque<std::uint64_t>> expected(receivers);
  std::uint64_t put = 0;
  std::vector<std::size_t> missing;  // by result: how many receivers have not taken it
  // A number below `receivers` lets that receiver take a result, any other puts one in. By chance some
  // receivers are slower than others.
  const auto steps =
      *rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(0, 3 * receivers));
  for (const std::size_t step : steps) {
    const auto gone = std::ranges::find_if(missing, [](std::size_t n) { return n > 0; }) - missing.begin();
    RC_ASSERT(queue.room() == capacity - (put - static_cast<std::size_t>(gone)));
    RC_ASSERT(queue.empty() == (queue.room() == capacity));
    if (step >= receivers) {
      if (queue.room() == 0) continue;
      using Kind = wire::Audience::Kind;
      const Kind kinds[] = {Kind::all, Kind::only, receivers > 1 ? Kind::all_but : Kind::all};
      const wire::Audience audience{*rc::gen::elementOf(std::vector<Kind>(kinds, kinds + 3)),
                                    *rc::gen::elementOf(ranks)};
      queue.push_back(
          {.staging = static_cast<StagingPool::Index>(put), .bytes = 64, .epoch = put, .audience = audience});
      missing.push_back(0);
      for (std::size_t i = 0; i < receivers; ++i) {
        if (!audience.has(ranks[i])) continue;
        expected[i].push_back(put);
        ++missing.back();
      }
      ++put;
      continue;
    }
    auto& own = expected[step];
    const ResultQueue::Result* next = queue.next(step);
    RC_ASSERT((next == nullptr) == own.empty());
    if (next == nullptr) continue;
    RC_ASSERT(next->epoch == own.front());
    own.pop_front();
    const bool last = --missing[next->epoch] == 0;
    RC_ASSERT(queue.take(step) == last);
  }
}

}  // namespace
}  // namespace nzcl::engine
