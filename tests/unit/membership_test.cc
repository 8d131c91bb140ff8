// Who shares a host, a network or cores with whom.
#include "runtime/plan/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nzcl::engine {
namespace {

using testing::ElementsAre;

TEST(Groups, EqualNamesMakeAGroupAndNumbersFollowTheFirstMember) {
  const auto groups = Groups::by_name({"b", "a", "b", "c", "a"});
  EXPECT_THAT(groups.numbers(), ElementsAre(0, 1, 0, 2, 1));
  EXPECT_TRUE(groups.together(0, 2));
  EXPECT_TRUE(groups.together(4, 1));
  EXPECT_FALSE(groups.together(0, 1));
  EXPECT_FALSE(groups.all_together());
}

TEST(Groups, EmptyNamesAreInNoGroup) {
  const auto groups = Groups::by_name({"", "a", "", "a"});
  EXPECT_THAT(groups.numbers(), ElementsAre(-1, 0, -1, 0));
  EXPECT_FALSE(groups.together(0, 2)) << "two members without a group do not share one";
  EXPECT_FALSE(groups.together(0, 0)) << "such a member is not even with itself";
  EXPECT_FALSE(groups.together(0, 1));
  EXPECT_FALSE(groups.all_together());
}

TEST(Groups, WhoAreInNoGroupAreNotTogether) { EXPECT_FALSE(Groups::by_name({"", ""}).all_together()); }

TEST(Groups, OneNameIsAllTogether) {
  EXPECT_TRUE(Groups::by_name({"a"}).all_together());
  EXPECT_TRUE(Groups::by_name({"a", "a", "a"}).all_together());
  EXPECT_FALSE(Groups::by_name({"a", "a", ""}).all_together());
}

TEST(Groups, SizesAndIndicesCountWithinTheGroup) {
  const auto groups = Groups::by_name({"a", "b", "a", "b", "a"});
  EXPECT_EQ(groups.size_of(0), 3);
  EXPECT_EQ(groups.size_of(3), 2);
  EXPECT_EQ(groups.index_of(0), 0);
  EXPECT_EQ(groups.index_of(1), 0);
  EXPECT_EQ(groups.index_of(2), 1);
  EXPECT_EQ(groups.index_of(3), 1);
  EXPECT_EQ(groups.index_of(4), 2);
}

TEST(Groups, AllGroupsHaveTheirMembersAndThoseInNoneAreAlone) {
  const auto groups = Groups::by_name({"a", "", "b", "a", ""});
  EXPECT_THAT(groups.all_members(),
              ElementsAre(ElementsAre(0, 3), ElementsAre(2), ElementsAre(1), ElementsAre(4)));
  EXPECT_EQ(groups.size_of(1), 1);
  EXPECT_EQ(groups.index_of(4), 0);
}

TEST(Groups, AmongSomeMembersHaveNewNumbers) {
  const auto groups = Groups::by_name({"a", "b", "", "c", "b"});
  EXPECT_THAT(groups.among({3, 2, 4, 1}).numbers(), ElementsAre(0, -1, 1, 1));
}

/// With a walk over all members for each of them, this would take hours.
TEST(Groups, OfAMillionMembersAreFoundAtOnce) {
  constexpr int kMembers = 1'000'000;
  std::vector<std::string> names;
  for (int member = 0; member < kMembers; ++member) names.push_back("host " + std::to_string(member / 2));
  const auto groups = Groups::by_name(names);
  EXPECT_EQ(groups.most_together(), 2);
  long long together = 0;
  std::vector<int> all;
  for (int member = 0; member < kMembers; ++member) {
    together += groups.size_of(member);
    all.push_back(member);
  }
  EXPECT_EQ(together, 2LL * kMembers);
  EXPECT_EQ(groups.among(all).numbers(), groups.numbers());
  EXPECT_EQ(groups.all_members().size(), kMembers / 2u);
}

TEST(Groups, WhoIsTogetherWithAMember) {
  const auto groups = Groups::by_name({"a", "b", "a", "", "c"});
  EXPECT_EQ(groups.group_of_member(2), (std::vector<int>{0, 2}));
  EXPECT_EQ(groups.group_of_member(4), (std::vector<int>{4}));
  EXPECT_EQ(groups.group_of_member(3), (std::vector<int>{3})) << "a member of no group is alone";
  EXPECT_EQ(groups.most_together(), 2);
  EXPECT_FALSE(groups.none_together());
  EXPECT_TRUE(Groups::by_name({"a", "b", "", ""}).none_together());
}

TEST(Members, WorkersComeFirstThenDedicatedAggregators) {
  const Members members{.self = 0, .workers = 3, .dedicated = 2};
  EXPECT_EQ(members.count(), 5);
  EXPECT_EQ(members.aggregators(), 2);
  EXPECT_EQ(members.aggregator_member(1), 4);
  EXPECT_TRUE(members.is_worker(2));
  EXPECT_FALSE(members.is_aggregator(2));
  EXPECT_TRUE(members.is_aggregator(3));
  EXPECT_EQ(members.name(2), "rank 2");
  EXPECT_EQ(members.name(4), "aggregator 1");
}

TEST(Members, WithoutDedicatedAggregatorsEveryWorkerIsOne) {
  const Members members{.self = 0, .workers = 3, .dedicated = 0};
  EXPECT_EQ(members.count(), 3);
  EXPECT_EQ(members.aggregators(), 3);
  EXPECT_EQ(members.aggregator_member(2), 2);
  EXPECT_TRUE(members.is_aggregator(2));
}

}  // namespace
}  // namespace nzcl::engine
