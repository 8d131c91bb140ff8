// The two ends of a channel, without a transport: the test carries slots and credits between them by hand.
#include "runtime/channel/channel.h"

#include <gtest/gtest.h>

#include <array>

namespace nzcl::engine {
namespace {

constexpr std::uint64_t kSlotBytes = 64;
constexpr std::uint32_t kSlots = 4, kBuffers = 8;

struct ChannelTest : ::testing::Test {
  std::array<std::byte, kSlotBytes * kBuffers> memory{};
  StagingPool pool{memory.data(), kSlotBytes, kBuffers, nullptr};
};

TEST_F(ChannelTest, WrittenMessagesComeOutInOrderWhateverOrderTheyArrivedIn) {
  SendChannel send({4096, 7}, kSlotBytes, kSlots);
  ReceiveChannel receive(memory.data(), kSlotBytes, kSlots);
  for (std::uint16_t i = 0; i < kSlots; ++i) {
    ASSERT_TRUE(send.ready());
    EXPECT_EQ(send.target().address, 4096 + i * kSlotBytes);
    EXPECT_EQ(send.take(pool.acquire()), i);
  }
  EXPECT_FALSE(send.ready());
  EXPECT_TRUE(receive.arrived(1));
  EXPECT_EQ(receive.pop().data, nullptr);
  EXPECT_TRUE(receive.arrived(0));
  EXPECT_EQ(receive.pop().data, memory.data());
  EXPECT_EQ(receive.pop().data, memory.data() + kSlotBytes);
  EXPECT_FALSE(receive.arrived(1)) << "the reader still holds it";
  EXPECT_FALSE(receive.arrived(kSlots)) << "there is no such slot";
  receive.release(1);
  EXPECT_EQ(receive.take_credit(), 0) << "credits count released slots up to the first one that is held";
  receive.release(0);
  EXPECT_TRUE(receive.credit_due());
  EXPECT_EQ(receive.take_credit(), 2);
  EXPECT_TRUE(send.credit(2, pool));
  EXPECT_TRUE(send.ready());
  EXPECT_EQ(pool.available(), kBuffers - kSlots)
      << "written buffers come back with their writes, not with credits";
}

TEST_F(ChannelTest, LentBuffersComeBackWithTheirCredits) {
  auto send = SendChannel::lending({4096, 7}, kSlots);
  auto receive = ReceiveChannel::borrowing(memory.data(), kSlotBytes, kSlots, kBuffers);
  std::uint16_t total = 0;
  for (int round = 0; round < 5; ++round) {
    std::array<StagingPool::Index, kSlots> lent;
    for (auto& buffer : lent) {
      ASSERT_TRUE(send.ready());
      buffer = pool.acquire();
      EXPECT_EQ(send.target().address, 4096u);
      EXPECT_TRUE(receive.arrived(send.take(buffer)));
    }
    EXPECT_FALSE(send.ready());
    EXPECT_EQ(pool.available(), kBuffers - kSlots);
    for (const auto buffer : lent) {
      const auto message = receive.pop();
      EXPECT_EQ(message.data, pool.buffer(buffer));
      receive.release(message.slot);
    }
    EXPECT_EQ(receive.pop().data, nullptr);
    EXPECT_TRUE(send.credit(total = receive.take_credit(), pool));
    EXPECT_EQ(pool.available(), kBuffers);
    EXPECT_TRUE(send.credit(total, pool)) << "said twice";
    EXPECT_TRUE(send.credit(static_cast<std::uint16_t>(total - 1), pool)) << "late";
    EXPECT_EQ(pool.available(), kBuffers);
  }
  EXPECT_FALSE(send.credit(static_cast<std::uint16_t>(total + 1), pool)) << "nothing is lent";
}

TEST_F(ChannelTest, AnnouncementsOfLentBuffersAreNotBelieved) {
  auto receive = ReceiveChannel::borrowing(memory.data(), kSlotBytes, kSlots, kBuffers);
  EXPECT_FALSE(receive.arrived(kBuffers)) << "there is no such buffer";
  for (std::uint16_t i = 0; i < kSlots; ++i) EXPECT_TRUE(receive.arrived(i));
  EXPECT_FALSE(receive.arrived(0)) << "more than there are credits for";
  EXPECT_FALSE(ReceiveChannel().arrived(0)) << "a channel that the roles do not need";
}

}  // namespace
}  // namespace nzcl::engine
