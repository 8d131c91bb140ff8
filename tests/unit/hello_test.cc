// How members introduce themselves, and what is made of it.
#include "runtime/comm/hello.h"

#include <gtest/gtest.h>

#include <vector>

namespace nzcl::comm {
namespace {

std::vector<Hello> two_ranks_of_this_host() {
  return {make_hello({}, Role::worker, 0), make_hello({}, Role::worker, 1)};
}

TEST(Hello, SurvivesTheWay) {
  const Hello own = make_hello({}, Role::worker, 3);
  const Hello read = Hello::decode(own.encode());
  EXPECT_EQ(read.encode(), own.encode());
  EXPECT_EQ(read.index, 3);
  EXPECT_FALSE(read.network.empty());
}

TEST(Roll, MembersOfOneHostShareItsMemoryAndItsNetwork) {
  const Roll roll = digest(two_ranks_of_this_host(), 0);
  EXPECT_EQ(roll.members.workers, 2);
  EXPECT_TRUE(roll.one_host);
  EXPECT_TRUE(roll.one_network);
}

TEST(Roll, TheSmallestCacheCountsForAll) {
  auto hellos = two_ranks_of_this_host();
  const auto digested = [&](std::uint64_t a, std::uint64_t b) {
    hellos[0].cache_bytes = a;
    hellos[1].cache_bytes = b;
    for (Hello& h : hellos) h = Hello::decode(h.encode());
    EXPECT_EQ(digest(hellos, 0).cache_bytes, digest(hellos, 1).cache_bytes);
    return digest(hellos, 0).cache_bytes;
  };
  EXPECT_EQ(digested(2 << 20, 1 << 20), 1u << 20);
  EXPECT_EQ(digested(1 << 20, 2 << 20), 1u << 20);
  EXPECT_EQ(digested(2 << 20, 0), 0u) << "one does not know its own";
}

TEST(Roll, ContainersOfOneHostMayHaveNetworksOfTheirOwn) {
  auto hellos = two_ranks_of_this_host();
  hellos[1].network += " of another container";
  for (const int place : {0, 1}) {
    EXPECT_TRUE(digest(hellos, place).one_host);
    EXPECT_FALSE(digest(hellos, place).one_network);
  }
}

}  // namespace
}  // namespace nzcl::comm
