// What both halves of the switch exchange are made of: addresses, times, timers and checksums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nzcl/error.h"
#include "runtime/switch/piece_size.h"
#include "runtime/switch/port.h"
#include "runtime/switch/timers.h"
#include "tests/engine/switch_tensor.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

TEST(PortAddress, TakesAsManySlotsAsAnyAggregatorMayHave) {
  PortAddress address{.address = "10.0.0.1:5",
                      .max_bytes = 1472,
                      .slots = kMostSlots,
                      .window = 7,
                      .job = kJob,
                      .zeros = true};
  const PortAddress read = PortAddress::decode(address.encode(), "aggregator 0");
  EXPECT_EQ(read.slots, kMostSlots);
  EXPECT_EQ(read.window, 7u);
  EXPECT_EQ(read.job.key.high, kJob.key.high);
  EXPECT_TRUE(read.zeros);
  address.window = 0;
  EXPECT_THROW(PortAddress::decode(address.encode(), "aggregator 0"), Error);
  address.window = kMostSlots + 1;
  EXPECT_THROW(PortAddress::decode(address.encode(), "aggregator 0"), Error);
  address.window = 7;
  address.slots = kMostSlots + 1;
  EXPECT_THROW(PortAddress::decode(address.encode(), "aggregator 0"), Error);
  EXPECT_THROW(PortAddress::decode("10.0.0.1:5 1472", "aggregator 0"), Error);
}

TEST(RoundTrips, AReplyThatMayHaveWaitedForOthersOnlyLowersThem) {
  RoundTrips trips;
  trips.bounded(300us);
  EXPECT_EQ(trips.smoothed(), 300us) << "better than nothing";
  for (int i = 0; i < 100; ++i) trips.bounded(10ms);
  EXPECT_EQ(trips.smoothed(), 300us);
  for (int i = 0; i < 100; ++i) trips.bounded(100us);
  EXPECT_NEAR(static_cast<double>(trips.smoothed().count()), 1e5, 1e3);
}

TEST(RoundTrips, DoubledTimeoutsShortenAsFarAsAReplyShows) {
  RoundTrips trips;
  for (int i = 0; i < 100; ++i) trips.measured(i * 1ms, 1ms);
  for (int i = 0; i < 4; ++i) trips.expired(i);
  EXPECT_EQ(trips.doublings(0), 4);
  trips.bounded(trips.timeout(2));
  EXPECT_EQ(trips.doublings(0), 2);
  trips.measured(1s, 1ms);
  EXPECT_EQ(trips.doublings(0), 0);
}

TEST(RoundTrips, WaitingForTheOwnQueueIsNoSignOfALoss) {
  RoundTrips trips;
  for (int i = 0; i < 100; ++i) trips.measured(i * 1ms, 100us);
  EXPECT_LT(trips.timeout(0), 500us);
  EXPECT_GE(trips.timeout(0, 1, 500us), 599us) << "the queue, and the round trip behind it";
  EXPECT_EQ(trips.timeout(1, 1, 500us), trips.timeout(0, 1, 500us)) << "not doubled";
  EXPECT_EQ(trips.timeout(8, 1, 500us), trips.timeout(8)) << "it has waited longer than that";
  EXPECT_EQ(trips.timeout(0, 1, 10s), kMostTimeout);
}

TEST(BlocksOfPiece, FewWhereMostBlocksAreZeroAndAsManyAsFitWhereNoneIs) {
  using wire::Density;
  for (const int ranks : {1, 2, 8, 1024}) {
    EXPECT_EQ(blocks_of_piece(8, 1024, Density(), ranks), 8u) << "nothing is known";
    EXPECT_EQ(blocks_of_piece(8, 1024, Density::of_share(1), ranks), 8u);
    EXPECT_EQ(blocks_of_piece(1, 1024, Density::of_share(0.01), ranks), 1u);
  }
  EXPECT_EQ(blocks_of_piece(8, 1024, Density::of_share(0.1), 4), 1u);
  EXPECT_EQ(blocks_of_piece(8, 1024, Density::of_share(0.01), 4), 1u);
  EXPECT_EQ(blocks_of_piece(8, 1024, Density::of_share(0.4), 8), 8u) << "the union of 8 ranks is nearly all";
  EXPECT_EQ(blocks_of_piece(64, 128, Density::of_share(0.4), 2), 64u) << "a packet costs more than a block";
}

TEST(TimerWheel, ExpiresEachOnceAndNotBeforeItsTime) {
  TimerWheel wheel(5);
  std::vector<std::uint32_t> expired;
  const auto note = [&](std::uint32_t item) { expired.push_back(item); };
  wheel.set(3, 0ms, 10ms);
  wheel.set(1, 0ms, 5ms);
  wheel.set(2, 0ms, 5ms);
  wheel.clear(2);
  wheel.advance(5ms - 1ns, note);
  EXPECT_THAT(expired, ElementsAre());
  wheel.advance(9ms, note);
  EXPECT_THAT(expired, ElementsAre(1));
  wheel.set(3, 9ms, 5ms);
  wheel.advance(11ms, note);
  EXPECT_THAT(expired, ElementsAre(1));
  wheel.advance(100s, note);
  EXPECT_THAT(expired, ElementsAre(1, 3));
}

TEST(SipHash, GivesThePublishedValues) {
  // From the appendix of the paper, and from the authors' vectors for shorter inputs.
  const SipKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::array<std::byte, 15> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  SipHash whole(key), parts(key), empty(key);
  whole.add(bytes);
  parts.add(std::span(bytes).first(8));
  parts.add(std::span(bytes).subspan(8));
  EXPECT_EQ(whole.finish(), 0xa129ca6149be45e5u);
  EXPECT_EQ(parts.finish(), 0xa129ca6149be45e5u);
  EXPECT_EQ(empty.finish(), 0x726fdb47dd0e0e31u);
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
