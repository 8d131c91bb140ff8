// Sets of those that have something to do, and the order in which they are visited.
#include "runtime/channel/ready_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace nzcl::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::size_t> all_of(const ReadySet& set, std::size_t first = 0) {
  std::vector<std::size_t> all;
  set.for_each_from(first, [&](std::size_t i) { all.push_back(i); });
  return all;
}

ReadySet set_of(std::size_t bound, const std::vector<std::size_t>& numbers) {
  ReadySet set(bound);
  for (const std::size_t i : numbers) set.insert(i);
  return set;
}

TEST(ReadySet, HasWhatWasInsertedAndNotErased) {
  ReadySet set(200);
  EXPECT_THAT(all_of(set), IsEmpty());
  for (const std::size_t i : {199, 0, 64, 63, 64}) set.insert(i);
  EXPECT_THAT(all_of(set), ElementsAre(0, 63, 64, 199));
  set.erase(64);
  set.erase(65);
  EXPECT_THAT(all_of(set), ElementsAre(0, 63, 199));
  EXPECT_TRUE(set.contains(63));
  EXPECT_FALSE(set.contains(64));
}

TEST(ReadySet, AWalkMayBeginAnywhere) {
  const ReadySet set = set_of(130, {0, 5, 64, 70, 129});
  EXPECT_THAT(all_of(set, 5), ElementsAre(5, 64, 70, 129, 0));
  EXPECT_THAT(all_of(set, 6), ElementsAre(64, 70, 129, 0, 5));
  EXPECT_THAT(all_of(set, 129), ElementsAre(129, 0, 5, 64, 70));
}

TEST(ReadySet, VisitorsMayErase) {
  ReadySet set = set_of(130, {1, 2, 3, 128});
  std::vector<std::size_t> visited;
  set.for_each([&](std::size_t i) {
    visited.push_back(i);
    set.erase(i);
    set.erase(3);
  });
  EXPECT_THAT(visited, ElementsAre(1, 2, 128));
  EXPECT_THAT(all_of(set), IsEmpty());
}

TEST(ReadySet, WhatIsInsertedBehindTheVisitorIsVisited) {
  ReadySet set = set_of(130, {1});
  std::vector<std::size_t> visited;
  set.for_each([&](std::size_t i) {
    visited.push_back(i);
    if (i == 1) set.insert(129);
  });
  EXPECT_THAT(visited, ElementsAre(1, 129));
}

TEST(ReadySet, MayBeOfNothing) { EXPECT_THAT(all_of(ReadySet()), IsEmpty()); }

}  // namespace
}  // namespace nzcl::engine
