// Results and the receivers that take them, by hand.
#include "runtime/engine/result_queue.h"

#include <gtest/gtest.h>

namespace nzcl::engine {
namespace {

TEST(ResultQueueTest, EveryReceiverTakesEveryResultInOrder) {
  ResultQueue queue(3, 2);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.next(0), nullptr);
  std::uint64_t taken[2] = {0, 0};
  std::uint64_t put = 0;
  // Receiver 0 takes each at once, receiver 1 three at a time: around the ring more than once.
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

}  // namespace
}  // namespace nzcl::engine
