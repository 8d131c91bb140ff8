// The two ends of a channel, without a transport: the test carries slots and credits between them by hand.
#include "runtime/channel/channel.h"

#include <gtest/gtest.h>

#include <array>

#include "runtime/channel/lane_context.h"
#include "runtime/channel/message_builder.h"
#include "runtime/channel/outbox.h"

namespace nzcl::engine {
namespace {

constexpr std::uint64_t kSlotBytes = 64;
constexpr std::uint32_t kSlots = 4, kBuffers = 8;

TEST(OutboxTest, WritesOfOneLevelDoNotWaitForThoseOfTheOther) {
  using verbs::Level;
  Outbox outbox(true);
  const auto push = [&](Level level, std::uint64_t number) {
    outbox.push({.peer = 1, .segments = {}, .target = {}, .immediate = {}, .context = number}, {}, level);
  };
  for (std::uint64_t i = 0; i < 3; ++i) push(Level::between, i);
  push(Level::within, 100);
  push(Level::within, 101);
  EXPECT_EQ(outbox.room(), Outbox::kCapacity - 3) << "that of the fuller one";
  ASSERT_EQ(outbox.pending(Level::within).size(), 2u);
  EXPECT_EQ(outbox.pending(Level::within).front().context, 100u);
  outbox.pop(2, Level::within);
  EXPECT_TRUE(outbox.pending(Level::within).empty());
  EXPECT_FALSE(outbox.empty());
  ASSERT_EQ(outbox.pending().size(), 3u);
  EXPECT_EQ(outbox.pending().front().context, 0u);
  outbox.pop(3);
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.room(), Outbox::kCapacity);
}

TEST(SlotWriterTest, GivesNoRoomBehindItsEnd) {
  std::array<std::byte, 32> memory{};
  SlotWriter writer(memory.data(), 16);
  const std::uint64_t value = ~std::uint64_t{0};
  EXPECT_EQ(writer.take(5), memory.data());
  EXPECT_TRUE(writer.fill_up_to(8));
  EXPECT_EQ(writer.take(9), nullptr);
  EXPECT_EQ(writer.bytes(), 8u) << "nothing was taken";
  EXPECT_FALSE(writer.fill_up_to(17));
  EXPECT_EQ(writer.rest().room(), 8u);
  EXPECT_TRUE(writer.put(&value, sizeof value));
  EXPECT_FALSE(writer.put(&value, 1));
  EXPECT_TRUE(writer.put(nullptr, 0));
  EXPECT_EQ(writer.take(~std::uint64_t{0}), nullptr);
  EXPECT_EQ(memory[15], std::byte{0xff});
  EXPECT_EQ(memory[16], std::byte{0});
  writer.take_back_to(8);
  EXPECT_EQ(writer.room(), 8u);
}

TEST(MessageBuilderTest, NoMessageBecomesLongerThanItsSlot) {
  std::array<std::byte, 64> staging{};
  const std::array<std::byte, 64> run{};
  const auto* region = reinterpret_cast<const verbs::MemoryRegion*>(1);  // which is not looked into
  MessageBuilder message({.segments = 3, .gather_bytes = 16, .bytes = 48}, staging.data(), region);
  EXPECT_NE(message.reserve(6), nullptr);
  EXPECT_TRUE(message.align(8));
  EXPECT_TRUE(message.add(run.data(), 24, region, 24)) << "gathered";
  EXPECT_EQ(message.room(), 16u) << "what is gathered counts as well";
  EXPECT_EQ(message.reserve(17), nullptr);
  EXPECT_FALSE(message.add(run.data(), 17, region, 17));
  EXPECT_FALSE(message.put(run.data(), 17));
  const std::uint64_t staged = message.staged();
  EXPECT_TRUE(message.put(run.data(), 15));
  EXPECT_EQ(message.segments().size(), 3u);
  EXPECT_FALSE(message.align(32));
  EXPECT_TRUE(message.align(4));
  EXPECT_EQ(message.bytes(), 48u);
  message.take_back_to(staged);
  EXPECT_EQ(message.bytes(), 32u);
  EXPECT_EQ(message.segments().size(), 2u);
  EXPECT_TRUE(message.put(run.data(), 16));
  EXPECT_EQ(message.segments().size(), 3u);
}

TEST(MessageBuilderTest, NothingIsAddedWithoutAnEntryOfTheGatherList) {
  std::array<std::byte, 64> staging{};
  const std::array<std::byte, 64> run{};
  const auto* region = reinterpret_cast<const verbs::MemoryRegion*>(1);
  MessageBuilder message({.segments = 1, .gather_bytes = 16, .bytes = 64}, staging.data(), region);
  EXPECT_TRUE(message.add(run.data(), 16, region, 16));
  EXPECT_FALSE(message.put(run.data(), 1)) << "what is staged behind it takes an entry";
  EXPECT_EQ(message.bytes(), 16u);
}

TEST(MessageBuilderTest, FarMemoryTakesOneEntryAsLongAsItLiesInOnePiece) {
  std::array<std::byte, 64> staging{};
  const std::array<std::byte, 64> far{};
  const auto* staged_region = reinterpret_cast<const verbs::MemoryRegion*>(1);  // which are not looked into
  const auto* far_region = reinterpret_cast<const verbs::MemoryRegion*>(2);
  MessageBuilder message({.segments = 3, .gather_bytes = 1000, .bytes = 40}, staging.data(), staged_region);
  EXPECT_TRUE(message.put(far.data(), 8));
  EXPECT_TRUE(message.add_far(far.data() + 4, 3, far_region));
  EXPECT_TRUE(message.add_far(far.data() + 7, 5, far_region));
  EXPECT_TRUE(message.add_far(far.data() + 20, 6, far_region));
  EXPECT_FALSE(message.in_one_piece());
  ASSERT_EQ(message.segments().size(), 3u);
  EXPECT_EQ(message.segments()[1].data, far.data() + 4);
  EXPECT_EQ(message.segments()[1].bytes, 8u);
  EXPECT_EQ(message.segments()[2].bytes, 6u);
  EXPECT_FALSE(message.add_far(far.data() + 40, 1, far_region)) << "there is no further entry";
  EXPECT_FALSE(message.add_far(far.data() + 26, 19, far_region)) << "that is more than the slot has";
  EXPECT_TRUE(message.add_far(far.data() + 26, 18, far_region));
  EXPECT_EQ(message.room(), 0u);
  EXPECT_EQ(message.copied(), 0u);
}

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

TEST(ChannelSets, OnlyMembersWithChannelsTakeRoom) {
  ChannelSets sets;
  sets.reset(5, [](std::size_t member) { return member == 1 || member == 4; });
  std::array<std::byte, 64> ring{};
  sets[4].receive_up = ReceiveChannel(ring.data(), 32, 2);
  EXPECT_EQ(sets[4].receive_up.slots(), 2u);
  EXPECT_NE(&sets[1], &sets[4]);
  EXPECT_EQ(&sets[0], &sets[2]);
  EXPECT_EQ(&sets[0], &sets[3]);
  EXPECT_EQ(sets[0].receive_up.slots(), 0u);
  EXPECT_FALSE(sets[0].receive_up.arrived(0)) << "a stranger's announcement";
  EXPECT_EQ(sets[0].receive_up.pop().data, nullptr);
  EXPECT_FALSE(sets[0].send_up.ready());
  EXPECT_FALSE(sets[0].send_up.newly_credited(1)) << "a stranger's credit";
}

}  // namespace
}  // namespace nzcl::engine
