// Who is in which communicator after a split.
#include "runtime/comm/join/split_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nzcl/error.h"

namespace nzcl::comm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string says(int color, int key) { return SplitChoice{.color = color, .key = key}.encode(); }

/// Four ranks and two aggregators that met in this order: aggregator 0, ranks 3 to 0, aggregator 1.
engine::Membership parent() {
  engine::Membership m;
  m.members = {.self = 2, .workers = 4, .dedicated = 2};
  m.member_of = {4, 3, 2, 1, 0, 5};
  m.position_of = {4, 3, 2, 1, 0, 5};
  m.names = {"aggregator 0 (pid 40 on x)", "rank 3 (pid 3 on x)", "rank 2 (pid 2 on x)",
             "rank 1 (pid 1 on y)",        "rank 0 (pid 9 on x)", "aggregator 1 (pid 41 on y)"};
  m.hosts = engine::Groups({0, 1, 0, 0, 0, 1});
  m.networks = engine::Groups({0, 1, 0, 0, 0, 1});
  m.process_spaces = engine::Groups({0, -1, 0, 0, 0, -1});
  m.cores = engine::Groups({0, 1, 2, 3, 4, 5});
  m.lanes = 3;
  m.cache_bytes = 77;
  return m;
}

TEST(SplitPlan, WorkersAreOrderedByKeyAndThenByRankAndAggregatorsAreInAllGroups) {
  const auto groups = plan_split(parent(), {"", says(5, -1), says(9, 0), says(5, 8), says(5, -1), ""});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].color, 5);
  EXPECT_EQ(groups[0].workers, 3);
  EXPECT_THAT(groups[0].members, ElementsAre(0, 3, 1, 4, 5));
  EXPECT_EQ(groups[1].color, 9);
  EXPECT_THAT(groups[1].members, ElementsAre(2, 4, 5));
}

TEST(SplitPlan, NegativeColoursAreInNoGroup) {
  EXPECT_THAT(plan_split(parent(), {"", says(-1, 0), says(-7, 0), says(-1, 0), says(-1, 0), ""}), IsEmpty());
}

TEST(SplitPlan, TextsThatAreNoChoiceAreRefused) {
  for (const char* text : {"", "[]", "{}", "null", R"({"color":1})", R"({"color":"1","key":0})",
                           R"({"color":1.5,"key":0})", R"({"color":1,"key":2147483648})",
                           R"({"color":-2147483649,"key":0})", R"({"color":18446744073709551615,"key":0})"}) {
    EXPECT_THROW(SplitChoice::decode(text), Error) << text;
  }
  EXPECT_EQ(SplitChoice::decode(says(2147483647, -2147483647 - 1)).key, -2147483647 - 1);
}

TEST(SplitPlan, AGroupsMembershipFollowsFromTheParents) {
  const auto m = membership_among(parent(), {3, 2, 0, 4, 5}, 3);
  EXPECT_EQ(m.members.self, 1);
  EXPECT_EQ(m.members.workers, 3);
  EXPECT_EQ(m.members.dedicated, 2);
  EXPECT_THAT(m.member_of, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(m.position_of, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(m.names, ElementsAre("rank 0 (pid 3 on x)", "rank 1 (pid 2 on x)", "rank 2 (pid 9 on x)",
                                   "aggregator 0 (pid 40 on x)", "aggregator 1 (pid 41 on y)"));
  EXPECT_THAT(m.hosts.numbers(), ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(m.process_spaces.numbers(), ElementsAre(0, 0, 0, 0, -1));
  EXPECT_EQ(m.lanes, 3);
  EXPECT_EQ(m.cache_bytes, 77u);
}

TEST(SplitPlan, AGroupOfOneHostIsAllTogetherWhateverItsNumberWas) {
  engine::Membership whole = parent();
  whole.members = {.self = 1, .workers = 6, .dedicated = 0};
  EXPECT_FALSE(whole.hosts.all_together());
  EXPECT_TRUE(membership_among(whole, {1, 5}, 2).hosts.all_together());
}

}  // namespace
}  // namespace nzcl::comm
