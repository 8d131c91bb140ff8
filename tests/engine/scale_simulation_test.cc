// The simulation of many ranks on many hosts: right sums, the same times in every run, and times that follow
// from the links.
#include <gtest/gtest.h>

#include <cmath>

#include "perf/scale/simulation.h"

namespace perf::scale {
namespace {

using nzcl::Algorithm;

Outcome right(const Scene& scene, const Case& of) {
  const Outcome o = simulate(scene, of);
  EXPECT_EQ(o.failure, "");
  EXPECT_EQ(o.wrong, 0u);
  EXPECT_GT(o.seconds, 0);
  return o;
}

TEST(ScaleSimulation, EverySumIsRight) {
  for (const Algorithm algorithm :
       {Algorithm::push, Algorithm::doubling, Algorithm::merging, Algorithm::hierarchy}) {
    for (const auto& [ranks, hosts] : {std::pair{6, 6}, {6, 3}, {8, 2}, {12, 5}}) {
      if (algorithm == Algorithm::hierarchy && ranks == hosts) continue;
      for (const double density : {1.0, 0.1}) {
        for (const std::uint64_t bytes : {std::uint64_t{4 << 10}, std::uint64_t{3000004}}) {
          if (algorithm == Algorithm::doubling && bytes > 4 << 10) continue;
          SCOPED_TRACE(::testing::Message() << nzcl::name_of(algorithm) << ", " << ranks << " ranks on "
                                            << hosts << " hosts, " << bytes << " bytes, density " << density);
          const Outcome o = right({}, {ranks, hosts, bytes, density, algorithm});
          EXPECT_EQ(o.algorithm, algorithm);
        }
      }
    }
  }
}

TEST(ScaleSimulation, ARunCanBeRepeated) {
  Scene scene;
  scene.sum_order = nzcl::SumOrder::any;
  for (const Case& c : {Case{24, 24, 1 << 20, 0.3}, Case{24, 6, 4 << 20, 1, Algorithm::hierarchy}}) {
    const Outcome a = right(scene, c), b = right(scene, c);
    EXPECT_EQ(a.fingerprint, b.fingerprint);
    EXPECT_EQ(a.host_bytes, b.host_bytes);
    EXPECT_EQ(a.messages, b.messages);
  }
}

/// One message to each other rank, and one hop.
TEST(ScaleSimulation, ASmallOperationTakesItsDelayAndTheTimeOfItsMessages) {
  Scene scene;
  scene.delay = seconds(100e-6);
  const Outcome o = right(scene, {4, 4, 8});
  EXPECT_GT(o.seconds, 100e-6);
  EXPECT_LT(o.seconds, 103e-6);
}

TEST(ScaleSimulation, ADenseTensorTakesTheTimeOfItsBytes) {
  Scene scene;
  scene.gigabits = 1;
  const Outcome o = right(scene, {4, 4, 16 << 20, 1, Algorithm::push});
  EXPECT_NEAR(o.bound, 2 * 0.75 * (16 << 20) * 8e-9, 1e-9);
  EXPECT_GT(o.seconds, o.bound);
  EXPECT_LT(o.seconds, 1.1 * o.bound);
  scene.gigabits = 2;
  EXPECT_NEAR(right(scene, {4, 4, 16 << 20, 1, Algorithm::push}).seconds, o.seconds / 2, 0.05 * o.seconds);
}

TEST(ScaleSimulation, AHierarchySendsWhatAHostHasOnce) {
  Scene scene;
  scene.gigabits = 1;
  const Outcome flat = right(scene, {16, 4, 16 << 20, 1, Algorithm::push});
  const Outcome levels = right(scene, {16, 4, 16 << 20, 1, Algorithm::hierarchy});
  EXPECT_LT(static_cast<double>(levels.host_bytes), 1.05 * levels.bound_bytes);
  EXPECT_GT(static_cast<double>(flat.host_bytes), 3 * levels.bound_bytes);
  EXPECT_LT(levels.seconds, flat.seconds / 2);
}

TEST(ScaleSimulation, ASpineThatIsTooSmallIsWhatCounts) {
  Scene scene;
  scene.gigabits = 1;
  const Case c{8, 8, 8 << 20, 1, Algorithm::push};
  const Outcome one_switch = right(scene, c);
  scene.rack_hosts = 4;
  scene.oversubscription = 4;
  const Outcome racks = right(scene, c);
  EXPECT_GT(racks.bound, 2 * one_switch.bound);
  EXPECT_GT(racks.seconds, racks.bound);
  EXPECT_LT(racks.seconds, 1.25 * racks.bound);
}

/// Messages that one owner would exchange with all ranks take longer than log2 N steps: 0.4 us for each of
/// 2 (N - 1).
TEST(ScaleSimulation, SmallOperationsOfManyRanksTakeLog2Steps) {
  for (const nzcl::SumOrder order : {nzcl::SumOrder::rank, nzcl::SumOrder::any}) {
    Scene scene;
    scene.sum_order = order;
    const Outcome o = right(scene, {100, 100, 8});
    EXPECT_NE(o.algorithm, Algorithm::push);
    EXPECT_LT(o.seconds, 25e-6) << "7 steps";
    EXPECT_LT(o.seconds, right(scene, {100, 100, 8, 1, Algorithm::push}).seconds / 1.5);
  }
}

TEST(ScaleSimulation, ManyRanksShareASmallTensor) {
  const Outcome o = right({}, {100, 100, 64 << 10, 1, Algorithm::push});
  EXPECT_LT(o.seconds, 150e-6) << "with two owners the bytes that each gets and returns take 520 us";
}

/// With fewer values, the same messages go the same ways.
TEST(ScaleSimulation, CoarseValuesTakeTheSameTime) {
  Scene scene;
  scene.sum_order = nzcl::SumOrder::any;
  for (const Case& c :
       {Case{16, 16, 8 << 20, 1, Algorithm::push}, Case{16, 16, 8 << 20, 0.2, Algorithm::push},
        Case{16, 4, 16 << 20, 1, Algorithm::hierarchy}}) {
    SCOPED_TRACE(::testing::Message() << nzcl::name_of(c.algorithm) << ", density " << c.density);
    scene.coarseness = 1;
    const double fine = right(scene, c).seconds;
    scene.coarseness = 16;
    EXPECT_NEAR(right(scene, c).seconds, fine, 0.15 * fine);
  }
}

/// Where they merge, a rank keeps 2 MiB and little of each other one. It was 16 KiB: 4 GiB for all of these.
TEST(ScaleSimulation, RanksThatMergeTakeLittleMemory) {
  Scene scene;
  scene.sum_order = nzcl::SumOrder::any;
  scene.most_memory = std::uint64_t{2} << 30;
  const Outcome o = right(scene, {512, 512, 64 << 10});
  EXPECT_EQ(o.algorithm, Algorithm::merging);
}

TEST(ScaleSimulation, WhatCannotBeIsRefused) {
  EXPECT_ANY_THROW(simulate({}, {4, 8, 8}));
  EXPECT_ANY_THROW(simulate({}, {4, 4, 64 << 20, 1, Algorithm::doubling}));
  Scene scene;
  scene.coarseness = 16;
  EXPECT_ANY_THROW(simulate(scene, {4, 4, 8}));
  scene = {};
  scene.most_memory = 1 << 20;
  EXPECT_ANY_THROW(simulate(scene, {4, 4, 8}));
}

}  // namespace
}  // namespace perf::scale
