// How members introduce themselves, and what each learns from the introductions of all.
#include "runtime/comm/hello.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nzcl/error.h"

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

TEST(Hello, BytesThatAreNotTextAreReplaced) {
  Hello own = make_hello({}, Role::worker, 0);
  own.host_name = "host \xff";
  own.options.session = "\xfe";
  const Hello read = Hello::decode(own.encode());
  EXPECT_EQ(read.host_name, "host \xEF\xBF\xBD");
  EXPECT_EQ(read.options.session, "\xEF\xBF\xBD");
}

TEST(Membership, NamesAnOptionEvenIfItsBytesAreNotText) {
  auto hellos = two_ranks_of_this_host();
  hellos[0].options.transport = "\xff";
  try {
    membership_of(hellos, 0);
    FAIL() << "the members disagree";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_NE(std::string(error.what()).find("option transport"), std::string::npos) << error.what();
  }
}

TEST(Membership, MembersOfOneHostShareItsMemoryAndItsNetwork) {
  const engine::Membership m = membership_of(two_ranks_of_this_host(), 0);
  EXPECT_EQ(m.members.workers, 2);
  EXPECT_TRUE(m.hosts.all_together());
  EXPECT_TRUE(m.networks.all_together());
}

TEST(Membership, SaysThatSomeMembersMayNotBeWritten) {
  auto hellos = two_ranks_of_this_host();
  for (Hello& h : hellos) h.process_space = "the same";
  const auto expect = [&](bool all, bool some) {
    for (const int position : {0, 1}) {
      EXPECT_EQ(membership_of(hellos, position).process_spaces.all_together(), all);
      EXPECT_EQ(membership_of(hellos, position).process_spaces.leave_some_out(), some);
    }
  };
  expect(true, false);
  hellos[1].process_space = "";
  expect(false, true);
  hellos[0].process_space = "";
  expect(false, false);
}

TEST(Membership, TheSmallestCacheCountsForAll) {
  auto hellos = two_ranks_of_this_host();
  const auto smallest_cache = [&](std::uint64_t a, std::uint64_t b) {
    hellos[0].cache_bytes = a;
    hellos[1].cache_bytes = b;
    for (Hello& h : hellos) h = Hello::decode(h.encode());
    EXPECT_EQ(membership_of(hellos, 0).cache_bytes, membership_of(hellos, 1).cache_bytes);
    return membership_of(hellos, 0).cache_bytes;
  };
  EXPECT_EQ(smallest_cache(2 << 20, 1 << 20), 1u << 20);
  EXPECT_EQ(smallest_cache(1 << 20, 2 << 20), 1u << 20);
  EXPECT_EQ(smallest_cache(2 << 20, 0), 0u) << "one does not know its own";
}

TEST(Membership, ContainersOfOneHostMayHaveNetworksOfTheirOwn) {
  auto hellos = two_ranks_of_this_host();
  hellos[1].network += " of another container";
  for (const int position : {0, 1}) {
    EXPECT_TRUE(membership_of(hellos, position).hosts.all_together());
    EXPECT_FALSE(membership_of(hellos, position).networks.all_together());
  }
}

}  // namespace
}  // namespace nzcl::comm
