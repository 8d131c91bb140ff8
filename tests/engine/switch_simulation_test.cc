// The simulation of many ranks on fast links: right sums, the same in every run.
#include <gtest/gtest.h>

#include "perf/switch_simulation/simulation.h"

namespace nzcl::perf {
namespace {

Scene small() {
  Scene scene;
  scene.most_packets = 1 << 14;
  scene.limit = std::chrono::seconds(1);
  return scene;
}

TEST(SwitchSimulation, EverySumIsRight) {
  for (const Overlap overlap : {Overlap::all, Overlap::random}) {
    for (const std::size_t mtu : {1500, 9000}) {
      for (const int workers : {1, 3, 16}) {
        for (const double density : {0.0, 0.01, 0.1, 1.0}) {
          for (const double loss : {0.0, 0.01}) {
            SCOPED_TRACE(::testing::Message()
                         << workers << " ranks, density " << density << ", loss " << loss << ", MTU " << mtu);
            Scene scene = small();
            scene.overlap = overlap;
            scene.mtu = mtu;
            scene.most_bytes = 1 << 22;
            const Outcome o = simulate(scene, {workers, density, loss});
            EXPECT_TRUE(o.ended);
            EXPECT_EQ(o.failure, "");
            EXPECT_EQ(o.wrong, 0u);
            EXPECT_LE(o.bound, o.seconds);
          }
        }
      }
    }
  }
}

TEST(SwitchSimulation, ARunCanBeRepeated) {
  const Outcome a = simulate(small(), {8, 0.5, 0.01}), b = simulate(small(), {8, 0.5, 0.01});
  EXPECT_EQ(a.seconds, b.seconds);
  EXPECT_EQ(a.repeated, b.repeated);
}

TEST(SwitchSimulation, WhatTakesTooLongIsGivenUp) {
  Scene scene = small();
  scene.limit = std::chrono::microseconds(30);
  const Outcome o = simulate(scene, {16, 1, 0});
  EXPECT_FALSE(o.ended);
  EXPECT_EQ(o.wrong, 0u);
}

}  // namespace
}  // namespace nzcl::perf
