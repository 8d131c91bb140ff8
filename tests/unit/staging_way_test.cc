#include "runtime/channel/staging_way.h"

#include <gtest/gtest.h>

#include <vector>

namespace nzcl::engine {
namespace {

/// How many of the next messages are streamed.
int streamed_of(StagingWay& way, std::uint32_t messages) {
  int streamed = 0;
  for (std::uint32_t i = 0; i < messages; ++i) streamed += way.next_is_streamed() ? 1 : 0;
  return streamed;
}

void feed(StagingWay& way, double cached_ns, double streamed_ns) {
  for (int i = 0; i < 20; ++i) way.add(false, cached_ns), way.add(true, streamed_ns);
}

TEST(StagingWay, BeginsInCachesAndTriesTheOtherWayNowAndThen) {
  StagingWay way;
  EXPECT_FALSE(way.streamed());
  EXPECT_EQ(streamed_of(way, 10 * kStagingTrial), 10);
}

TEST(StagingWay, FollowsWhatReadersMeasure) {
  StagingWay way;
  feed(way, 60, 110);
  EXPECT_FALSE(way.streamed());
  feed(way, 420, 130);
  EXPECT_TRUE(way.streamed());
  EXPECT_EQ(streamed_of(way, 10 * kStagingTrial), 10 * (static_cast<int>(kStagingTrial) - 1));
  feed(way, 60, 110);
  EXPECT_FALSE(way.streamed());
}

TEST(StagingWay, StaysAsItIsWhereThereIsLittleDifference) {
  StagingWay way;
  feed(way, 0.7 * 100, 100);
  EXPECT_FALSE(way.streamed());
  feed(way, 2 * 100, 100);
  ASSERT_TRUE(way.streamed());
  feed(way, 0.7 * 100, 100);
  EXPECT_TRUE(way.streamed());
}

TEST(StagingWay, OneInterruptedSampleChangesNothing) {
  StagingWay way;
  feed(way, 50, 150);
  way.add(false, 1e7);
  EXPECT_FALSE(way.streamed());
}

TEST(StagingWay, OneWayAloneDecidesNothing) {
  StagingWay way;
  for (int i = 0; i < 20; ++i) way.add(false, 1000);
  EXPECT_FALSE(way.streamed());
}

TEST(StagingWay, TimesEveryTrialAndFewOthers) {
  StagingWay way;
  int timed = 0;
  for (std::uint32_t i = 0; i < 10 * kStagingSample; ++i) timed += way.should_time(false) ? 1 : 0;
  EXPECT_EQ(timed, 10);
  EXPECT_TRUE(way.should_time(true));
}

TEST(StagingWay, WhatIsForcedIsNeitherTriedNorTimed) {
  StagingWay cached(Staging::cached), streamed(Staging::streamed);
  feed(cached, 1000, 10);
  feed(streamed, 10, 1000);
  EXPECT_EQ(streamed_of(cached, 1000), 0);
  EXPECT_EQ(streamed_of(streamed, 1000), 1000);
  EXPECT_FALSE(cached.should_time(true));
}

TEST(StagingWay, ASampleTakesTime) {
  const std::vector<std::byte> memory(kStagingSampleBytes);
  EXPECT_GT(read_ns_per_kib(memory.data(), memory.size()), 0);
}

}  // namespace
}  // namespace nzcl::engine
