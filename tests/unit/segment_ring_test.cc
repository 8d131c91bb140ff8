#include "verbs/segment/ring.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "verbs/segment/next_write.h"

namespace nzcl::verbs::segment {
namespace {

constexpr std::uint32_t kEntries = 64;

struct RingTest : ::testing::Test {
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>((Ring::bytes(kEntries)) / 8);
  Ring ring{reinterpret_cast<std::byte*>(memory.data()), kEntries};
  RingWriter writer{ring};
  RingReader reader{ring};
};

TEST_F(RingTest, IsEmptyAtFirst) {
  std::uint32_t immediate = 7;
  EXPECT_TRUE(reader.empty());
  EXPECT_FALSE(reader.pop(immediate));
  EXPECT_EQ(immediate, 7u);
  EXPECT_FALSE(writer.full());
}

TEST_F(RingTest, EveryValueComesOutOnceInOrderOverManyLaps) {
  std::uint32_t sent = 0, seen = 0, immediate = 0;
  for (std::uint32_t step = 0; step < 20 * kEntries; ++step) {
    for (std::uint32_t i = 0; i < step % 5; ++i) writer.push(~sent++);
    while (reader.pop(immediate)) EXPECT_EQ(immediate, ~seen++);
    EXPECT_EQ(seen, sent);
    EXPECT_TRUE(reader.empty());
    EXPECT_FALSE(writer.full());
  }
}

TEST_F(RingTest, IsFullUntilTheReaderHasSaidThatItTookSome) {
  for (std::uint32_t i = 0; i < kEntries; ++i) {
    EXPECT_FALSE(writer.full());
    writer.push(i);
  }
  EXPECT_TRUE(writer.full());
  std::uint32_t immediate = 0, taken = 0;
  while (writer.full()) {
    ASSERT_TRUE(reader.pop(immediate)) << "nothing left, and still full";
    EXPECT_EQ(immediate, taken++);
  }
  EXPECT_LE(taken, kEntries / 4);
  // Entries that were taken may be filled again, and no other entry is overwritten.
  while (!writer.full()) writer.push(1000);
  for (; taken < kEntries; ++taken) {
    ASSERT_TRUE(reader.pop(immediate));
    EXPECT_EQ(immediate, taken);
  }
  while (reader.pop(immediate)) EXPECT_EQ(immediate, 1000u);
  EXPECT_FALSE(writer.full());
}

TEST_F(RingTest, OneThreadWritesWhileAnotherReads) {
  constexpr std::uint32_t kCount = 200'000;
  std::vector<std::uint32_t> payload(kCount);  // each element is written before its immediate is pushed
  std::thread peer([&] {
    for (std::uint32_t i = 0; i < kCount; ++i) {
      while (writer.full()) std::this_thread::yield();
      payload[i] = 3 * i;
      writer.push(i);
    }
  });
  std::uint32_t immediate = 0, wrong = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    while (!reader.pop(immediate)) std::this_thread::yield();
    wrong += immediate != i || payload[i] != 3 * i;
  }
  peer.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(reader.empty());
}

TEST(NextWrite, FollowsSteadySteps) {
  NextWrite next;
  next.after(1000);
  EXPECT_EQ(next.after(1100), 0u);  // one step says nothing yet
  EXPECT_EQ(next.after(1200), 1300u);
  EXPECT_EQ(next.after(1000), 0u);  // the ring begins again
  EXPECT_EQ(next.after(1100), 0u);
  EXPECT_EQ(next.after(1200), 1300u);
}

}  // namespace
}  // namespace nzcl::verbs::segment
