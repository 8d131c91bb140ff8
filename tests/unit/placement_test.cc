// plan() on machines of many kinds. Their topologies come from hwloc's XML files and from its synthetic
// descriptions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "runtime/placement/plan.h"
#include "runtime/placement/topology.h"

namespace nzcl::placement {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

int node_of(const Topology& t, int cpu) {
  return std::find_if(t.cores.begin(), t.cores.end(), [&](const Core& c) { return c.cpu == cpu; })->node;
}

std::vector<int> all_cpus(const Placement& p) {
  std::vector<int> all = p.lane_cpus;
  all.insert(all.end(), p.scan_cpus.begin(), p.scan_cpus.end());
  return all;
}

TEST(Topology, ThisMachineHasACore) {
  const Topology t = read_topology();
  EXPECT_FALSE(t.cores.empty());
  EXPECT_GE(t.nodes, 1);
  EXPECT_FALSE(t.cpus.empty());
}

TEST(Topology, SavedXmlOfATwoNodeServer) {
  const Topology t = read_saved_topology(NZCL_SOURCE_DIR "/tests/unit/topologies/two_nodes.xml");
  EXPECT_EQ(t.nodes, 2);
  EXPECT_THAT(t.cores, SizeIs(8));
  EXPECT_EQ(t.cores.front().node, 0);
  EXPECT_EQ(t.cores.back().node, 1);
}

TEST(Topology, ACoresCacheIsItsShareOfTheSecondLevel) {
  const auto cache = [](const std::string& text) { return read_saved_topology(text).cache_bytes; };
  EXPECT_EQ(cache("pack:1 l3:1(size=64MB) l2:4(size=1048576) core:1 pu:2"), 1u << 20);
  EXPECT_EQ(cache("pack:1 l2:2(size=4194304) core:4 pu:1"), 1u << 20) << "four cores share one";
  EXPECT_EQ(cache("pack:1 l3:1(size=64MB) core:4 pu:1"), 0u) << "unknown";
}

TEST(Topology, TextThatIsNoTopologyIsRefusedByName) {
  try {
    read_saved_topology("/no/such/machine.xml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("/no/such/machine.xml"));
  }
}

TEST(Plan, EightRanksOnTwoCoresDoNotPinAndDoNotSpin) {
  const Topology t = read_saved_topology("pack:1 core:2 pu:1");
  for (int rank = 0; rank < 8; ++rank) {
    const Placement p = plan(t, {.local_rank = rank, .local_ranks = 8});
    EXPECT_THAT(p.lane_cpus, ElementsAre(-1));
    EXPECT_THAT(p.scan_cpus, IsEmpty());
    EXPECT_EQ(p.spin.count(), 0);
    EXPECT_EQ(p.caller_spin.count(), 0);
  }
}

TEST(Plan, ARankWithOneCoreLetsOnlyItsCallerSpin) {
  const Topology t = read_saved_topology("pack:1 core:2 pu:1");
  for (int rank = 0; rank < 2; ++rank) {
    const Placement p = plan(t, {.local_rank = rank, .local_ranks = 2});
    EXPECT_EQ(p.spin.count(), 0);
    EXPECT_GT(p.caller_spin.count(), 0);
  }
}

TEST(Plan, EightRanksOnATwoSocketServerStayWithinTheirNodes) {
  const Topology t = read_saved_topology("pack:2 [numa] core:32 pu:2");
  std::set<int> used;
  for (int rank = 0; rank < 8; ++rank) {
    const Placement p = plan(t, {.local_rank = rank, .local_ranks = 8});
    EXPECT_THAT(p.lane_cpus, SizeIs(2));  // 8 cores each
    EXPECT_THAT(p.scan_cpus, SizeIs(2));
    EXPECT_GT(p.spin.count(), 0);
    EXPECT_EQ(p.caller_spin, p.spin);
    for (const int cpu : all_cpus(p)) {
      EXPECT_EQ(node_of(t, cpu), rank / 4);
      EXPECT_TRUE(used.insert(cpu).second) << "cpu " << cpu << " is given twice";
    }
  }
}

TEST(Plan, FourNodesPerSocketKeepOneRankPerNode) {
  const Topology t = read_saved_topology("pack:2 group:4 [numa] core:8 pu:2");
  EXPECT_EQ(t.nodes, 8);
  for (int rank = 0; rank < 8; ++rank) {
    for (const int cpu : all_cpus(plan(t, {.local_rank = rank, .local_ranks = 8})))
      EXPECT_EQ(node_of(t, cpu), rank);
  }
}

TEST(Plan, PinOnAndOffAreObeyed) {
  const Topology small = read_saved_topology("pack:1 core:2 pu:1");
  EXPECT_THAT(plan(small, {.local_rank = 3, .local_ranks = 4, .pin = Pinning::on}).lane_cpus, ElementsAre(1));
  const Topology large = read_saved_topology("pack:1 core:16 pu:1");
  EXPECT_THAT(all_cpus(plan(large, {.pin = Pinning::off})), Each(-1));
}

TEST(Plan, TakesCoresNearTheGradientsOutOfItsShare) {
  const Topology t = read_saved_topology("pack:2 [numa] core:16 pu:1");
  for (const int node : {0, 1}) {
    const Placement p = plan(t, {.node = node});
    EXPECT_EQ(p.node, node);
    for (const int cpu : all_cpus(p)) EXPECT_EQ(node_of(t, cpu), node);
  }
}

TEST(Plan, WithoutACoreNearTheGradientsKeepsItsShareAndNamesTheirNode) {
  const Topology t = read_saved_topology("pack:2 [numa] core:16 pu:1");
  const PlacementRequest first_half{.local_rank = 0, .local_ranks = 2};
  PlacementRequest far = first_half;
  far.node = 1;
  EXPECT_EQ(plan(t, first_half).node, 0);
  EXPECT_EQ(plan(t, far).node, 1);
  EXPECT_EQ(all_cpus(plan(t, far)), all_cpus(plan(t, first_half)));
}

TEST(Plan, RefusesNonsense) {
  const Topology t = read_saved_topology("pack:1 core:2 pu:1");
  EXPECT_THROW(plan(t, {.local_rank = 2, .local_ranks = 2}), Error);
  EXPECT_THROW(plan(t, {.local_rank = -1}), Error);
  EXPECT_THROW(plan(t, {.scan_threads = -2}), Error);
}

struct Machine {
  Topology topology;
  int nodes, cores_per_node;
};
Machine any_machine() {
  Machine m{{}, *rc::gen::inRange(1, 9), *rc::gen::inRange(1, 33)};
  for (int n = 0; n < m.nodes; ++n) {
    for (int c = 0; c < m.cores_per_node; ++c)
      m.topology.cores.push_back({.node = n, .cpu = n * m.cores_per_node + c});
  }
  m.topology.nodes = m.nodes;
  return m;
}

RC_GTEST_PROP(Plan, GivesEveryThreadAKnownCpuOrNone, ()) {
  const Machine m = any_machine();
  const int ranks = *rc::gen::inRange(1, 40);
  const PlacementRequest request{.local_rank = *rc::gen::inRange(0, ranks),
                                 .local_ranks = ranks,
                                 .lanes = *rc::gen::inRange(0, 9),
                                 .scan_threads = *rc::gen::inRange(-1, 9),
                                 .pin = *rc::gen::element(Pinning::automatic, Pinning::on, Pinning::off)};
  const Placement p = plan(m.topology, request);
  RC_ASSERT((request.lanes == 0 ? !p.lane_cpus.empty()
                                : p.lane_cpus.size() == static_cast<std::size_t>(request.lanes)));
  RC_ASSERT(
      (request.scan_threads < 0 || p.scan_cpus.size() == static_cast<std::size_t>(request.scan_threads)));
  const int cpus = m.nodes * m.cores_per_node;
  for (const int cpu : all_cpus(p)) {
    RC_ASSERT(cpu >= -1);
    RC_ASSERT(cpu < cpus);
    RC_ASSERT((request.pin != Pinning::on || cpu >= 0));
    RC_ASSERT((request.pin != Pinning::off || cpu == -1));
  }
}

RC_GTEST_PROP(Plan, AutomaticPinningNeverGivesACpuTwiceAndLeavesEveryRankOne, ()) {
  const Machine m = any_machine();
  const int ranks = *rc::gen::inRange(1, 40);
  std::set<int> used;
  int pinned_ranks = 0;
  for (int r = 0; r < ranks; ++r) {
    const Placement p = plan(m.topology, {.local_rank = r, .local_ranks = ranks});
    bool pinned = false;
    for (const int cpu : all_cpus(p)) {
      if (cpu < 0) continue;
      pinned = true;
      RC_ASSERT(used.insert(cpu).second);
    }
    pinned_ranks += pinned;
  }
  RC_ASSERT(used.size() + static_cast<std::size_t>(pinned_ranks) <= m.topology.cores.size());
}

}  // namespace
}  // namespace nzcl::placement
