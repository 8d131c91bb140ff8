// How members introduce themselves, and what each learns from the introductions of all.
#include "runtime/comm/join/hello.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/local.h"
#include "runtime/bootstrap/string_list.h"
#include "runtime/comm/join/node_and_link.h"
#include "runtime/comm/join/whereabouts.h"

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

TEST(Hello, AnOptionThatDoesNotExistHereIsAMismatch) {
  std::string text = make_hello({}, Role::worker, 0).encode();
  const std::string known = "\"sum_order\":\"rank\"";
  ASSERT_NE(text.find(known), std::string::npos) << text;
  text.replace(text.find(known), known.size(), "\"sum_order\":\"size\"");
  try {
    Hello::decode(text);
    FAIL() << "no member has such an order";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_NE(std::string(error.what()).find("option sum_order (of a member)"), std::string::npos)
        << error.what();
  }
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
  const auto expect = [&](bool all) {
    for (const int position : {0, 1})
      EXPECT_EQ(membership_of(hellos, position).process_spaces.all_together(), all);
  };
  expect(true);
  hellos[1].process_space = "";
  expect(false);
  hellos[0].process_space = "";
  expect(false);
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

TEST(NodeAndLink, SurvivesTheWay) {
  const NodeAndLink some{.node = 3, .link = engine::own_link(0.1, 0), .scan_streams = 2};
  const NodeAndLink read = NodeAndLink::decode(some.encode(), "rank 1");
  EXPECT_EQ(read.node, 3);
  EXPECT_EQ(read.link, some.link);
  EXPECT_EQ(read.scan_streams, 2);
  EXPECT_EQ(NodeAndLink::decode(NodeAndLink{}.encode(), "rank 1").link, engine::LinkSpeed{});
}

TEST(Whereabouts, SurviveTheWayAndNothingElseIsTakenForThem) {
  const Whereabouts read = Whereabouts::decode(
      Whereabouts{.port = "a port", .node_and_link = NodeAndLink{.node = 3, .link = {}}.encode()}.encode(),
      "rank 1");
  EXPECT_EQ(read.port, "a port");
  EXPECT_EQ(NodeAndLink::decode(read.node_and_link, "rank 1").node, 3);
  for (const std::string& other : {std::string(), bootstrap::encode_strings({"a"}),
                                   bootstrap::encode_strings({"a", "b", "c"}), std::string("\x7f")})
    EXPECT_THROW(Whereabouts::decode(other, "rank 1"), Error) << other;
}

TEST(NodeAndLink, AllMembersComeToTheSlowestLinkThatAnyKnows) {
  // By position in the meeting; members are numbered otherwise.
  const std::vector<NodeAndLink> told{{.node = 0, .link = engine::own_link(0, 100)},
                                      {.node = 1, .link = {}},
                                      {.node = -1, .link = engine::own_link(2.5, 100)}};
  for (int position = 0; position < 3; ++position) {
    engine::Membership m;
    m.members = {.self = 2 - position, .workers = 3};
    m.member_of = m.position_of = {2, 1, 0};
    m.names = {"rank 2", "rank 1", "rank 0"};
    m.hosts = engine::Groups({0, 1, 2});
    enter_nodes_and_links({told[0].encode(), told[1].encode(), told[2].encode()}, m);
    EXPECT_EQ(m.nodes, (std::vector<int>{-1, 1, 0}));
    EXPECT_EQ(engine::slowest_link(m.links), engine::own_link(2.5, 0));
    m.hosts = m.networks = m.process_spaces = m.cores = engine::Groups({0, 1, 2});
    m.members.self = 1;
    EXPECT_EQ(engine::slowest_link(engine::membership_among(m, {2, 1}, 2).links), engine::own_link(0, 100))
        << "the slow link is not among theirs";
  }
}

TEST(NodeAndLink, OneWorkerOfEachHostMeasuresForAll) {
  engine::Membership m;
  m.members = {.self = 0, .workers = 4, .dedicated = 1};
  m.member_of = m.position_of = {0, 1, 2, 3, 4};
  m.names.resize(5);
  m.hosts = m.networks = m.process_spaces = m.cores = engine::Groups({0, 1, 1, 0, 1});
  std::vector<std::string> told;
  for (m.members.self = 0; m.members.self < 5; ++m.members.self) {
    const int streams = measure_scan_streams(m);
    EXPECT_EQ(streams > 0, m.members.self == 0 || m.members.self == 1) << m.members.self;
    told.push_back(NodeAndLink{.link = {}, .scan_streams = streams > 0 ? m.members.self + 2 : 0}.encode());
  }
  for (m.members.self = 0; m.members.self < 5; ++m.members.self) {
    enter_nodes_and_links(told, m);
    EXPECT_EQ(m.scan_streams, m.hosts.together(0, m.members.self) ? 2 : 3) << m.members.self;
  }
  m.members.self = 3;
  enter_nodes_and_links(told, m);
  EXPECT_EQ(engine::membership_among(m, {3, 4}, 1).scan_streams, 2);
}

TEST(NodeAndLink, WhatCannotBeIsRefusedByName) {
  for (const char* text :
       {"", "3", "{}", R"({"scan_streams": 1, "node": 0, "gbps": "fast", "source": 1})",
        R"({"scan_streams": 1, "node": 0, "gbps": -1, "source": 1})",
        R"({"scan_streams": 1, "node": 0, "gbps": 0, "source": 2})",
        R"({"scan_streams": 1, "node": 0, "gbps": 1e999, "source": 2})",
        R"({"scan_streams": 1, "node": 1e300, "gbps": 1, "source": 1})",
        R"({"scan_streams": 1, "node": -2, "gbps": 1, "source": 1})",
        R"({"scan_streams": 1, "node": 0, "gbps": 1, "source": 0})",
        R"({"scan_streams": 1, "node": 0, "gbps": 1, "source": 3})", R"({"node": 0, "gbps": 1, "source": 1})",
        R"({"scan_streams": 5, "node": 0, "gbps": 1, "source": 1})",
        R"({"scan_streams": -1, "node": 0, "gbps": 1, "source": 1})"}) {
    try {
      (void)NodeAndLink::decode(text, "rank 7");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::mismatch);
      EXPECT_EQ(std::string(e.what()).find("rank 7"), 0u) << e.what();
    }
  }
}

}  // namespace
}  // namespace nzcl::comm
