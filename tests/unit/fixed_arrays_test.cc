// Arrays and queues whose size is known when they are made, and a lock.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/small_array.h"
#include "runtime/base/try_lock.h"
#include "runtime/channel/fixed_queue.h"
#include "runtime/lane/submission_queue.h"

namespace nzcl {
namespace {

template <typename T>
bool lies_inside(const SmallArray<T, 4>& array) {
  const auto* at = reinterpret_cast<const char*>(array.data());
  const auto* object = reinterpret_cast<const char*>(&array);
  return at >= object && at < object + sizeof array;
}

TEST(SmallArray, HoldsSmallArraysItselfAndAllBeginWithZeros) {
  for (std::size_t size = 0; size <= 6; ++size) {
    SmallArray<std::atomic<std::uint64_t>, 4> array(size);
    EXPECT_EQ(lies_inside(array), size <= 4) << size;
    for (std::size_t i = 0; i < size; ++i) EXPECT_EQ(array[i].load(), 0u);
    for (std::size_t i = 0; i < size; ++i) array[i] = i + 1;
    for (std::size_t i = 0; i < size; ++i) EXPECT_EQ(array[i].load(), i + 1);
  }
}

TEST(TryLock, IsHeldByOneAtATime) {
  TryLock lock;
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
}

TEST(SubmissionQueue, KeepsItsOrderAroundItsEnd) {
  engine::SubmissionQueue queue;
  std::array<std::byte, engine::kMaxOperations> places{};  // only addresses are passed on
  const auto operation = [&](std::size_t i) { return reinterpret_cast<engine::Operation*>(&places[i]); };
  EXPECT_EQ(queue.pop(), nullptr);
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t i = 0; i < places.size() - 5; ++i) queue.push(operation(i));
    EXPECT_FALSE(queue.empty());
    for (std::size_t i = 0; i < places.size() - 5; ++i) EXPECT_EQ(queue.pop(), operation(i));
    EXPECT_TRUE(queue.empty());
  }
}

TEST(FixedQueue, KeepsItsOrderAroundItsEnd) {
  for (std::size_t capacity = 1; capacity <= 5; ++capacity) {
    engine::FixedQueue<int> queue(capacity);
    int in = 0, out = 0;
    for (std::size_t fill = 1; fill <= capacity; ++fill) {
      for (int round = 0; round < 7; ++round) {
        while (queue.size() < fill) {
          queue.push_back(in++);
          EXPECT_EQ(queue.back(), in - 1);
        }
        EXPECT_EQ(queue.front(), out);
        queue.pop_front();
        ++out;
      }
    }
    for (; !queue.empty(); queue.pop_front()) EXPECT_EQ(queue.front(), out++);
    EXPECT_EQ(out, in);
  }
}

}  // namespace
}  // namespace nzcl
