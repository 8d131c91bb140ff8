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
  ResultQueue queue(3, 2);
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
    EXPECT_EQ(queue.full(), put % 3 == 0);
    if (!queue.full()) continue;
    while (const ResultQueue::Result* next = queue.next(1)) {
      EXPECT_EQ(next->staging, taken[1]++);
      EXPECT_TRUE(queue.take(1)) << "the last one to want it";
    }
    EXPECT_TRUE(queue.empty());
  }
  EXPECT_EQ(taken[1], put);
}

/// Compares the queue with a model that has a separate queue for every receiver.
RC_GTEST_PROP(ResultQueue, IsAQueueForEveryReceiver, ()) {
  const auto capacity = *rc::gen::inRange<std::size_t>(1, 9);
  const auto receivers = *rc::gen::inRange<std::size_t>(1, 7);
  ResultQueue queue(capacity, receivers);
  std::vector<std::deque<std::uint64_t>> expected(receivers);
  std::uint64_t put = 0, gone = 0;
  // A number below `receivers` lets that receiver take a result, any other puts one in. By chance some
  // receivers are slower than others.
  const auto steps =
      *rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(0, 3 * receivers));
  for (const std::size_t step : steps) {
    RC_ASSERT(queue.empty() == (gone == put));
    RC_ASSERT(queue.full() == (put - gone == capacity));
    if (step >= receivers) {
      if (queue.full()) continue;
      queue.push_back({.staging = static_cast<StagingPool::Index>(put), .bytes = 64, .epoch = put});
      for (auto& one : expected) one.push_back(put);
      ++put;
      continue;
    }
    auto& own = expected[step];
    const ResultQueue::Result* next = queue.next(step);
    RC_ASSERT((next == nullptr) == own.empty());
    if (next == nullptr) continue;
    RC_ASSERT(next->epoch == own.front());
    own.pop_front();
    const bool last = std::ranges::none_of(
        expected, [&](const auto& other) { return !other.empty() && other.front() <= next->epoch; });
    RC_ASSERT(queue.take(step) == last);
    gone += last ? 1 : 0;
  }
}

}  // namespace
}  // namespace nzcl::engine
