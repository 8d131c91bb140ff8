// The schedules by which contributions are gathered.
#include <gtest/gtest.h>

#include <set>

#include "runtime/exchange/gather/schedule.h"

namespace nzcl::engine {
namespace {

/// Plays a schedule for one rank: all ranks do the same, so what it has by distance is what each has. Checks
/// what Schedule promises.
void expect_to_gather(const Schedule& schedule, int ranks) {
  std::set<int> held{0};
  for (const Leg& leg : schedule) {
    ASSERT_GT(leg.contributions, 0);
    for (int i = 0; i < leg.contributions; ++i) {
      ASSERT_TRUE(held.contains(i)) << "it passes on what is not there, among " << ranks << " ranks";
      EXPECT_LT(leg.distance + i, ranks);
    }
    for (int i = 0; i < leg.contributions; ++i)
      EXPECT_TRUE(held.insert(leg.distance + i).second) << "it comes twice, among " << ranks << " ranks";
  }
  EXPECT_EQ(held.size(), static_cast<std::size_t>(ranks));
}

TEST(GatherSchedule, EveryRankGetsEveryContributionOnce) {
  for (int ranks = 1; ranks <= 130; ++ranks) {
    expect_to_gather(one_hop_schedule(ranks), ranks);
    expect_to_gather(doubling_schedule(ranks), ranks);
  }
}

TEST(GatherSchedule, OneHopPassesOnNothing) {
  const Schedule schedule = one_hop_schedule(4);
  EXPECT_EQ(schedule.size(), 3u);
  for (const Leg& leg : schedule) EXPECT_EQ(leg.contributions, 1);
}

TEST(GatherSchedule, DoublingTakesLogarithmicallyManyRounds) {
  EXPECT_TRUE(doubling_schedule(1).empty());
  EXPECT_EQ(doubling_schedule(2).size(), 1u);
  EXPECT_EQ(doubling_schedule(64).size(), 6u);
  EXPECT_EQ(doubling_schedule(65).size(), 7u);
  EXPECT_EQ(doubling_schedule(5).back().contributions, 1) << "the last round is as short as it can be";
}

/// Two ranks have a channel for doubling where one of its legs goes from one to the other.
TEST(GatherSchedule, ChannelsAreWhereLegsGo) {
  for (int ranks = 1; ranks <= 70; ++ranks) {
    std::set<int> distances;
    for (const Leg& leg : doubling_schedule(ranks)) distances.insert(leg.distance);
    for (int distance = 1; distance < ranks; ++distance)
      EXPECT_EQ(round_of_distance(ranks, distance) >= 0, distances.contains(distance));
  }
}

}  // namespace
}  // namespace nzcl::engine
