// The simulation of many ranks on fast links: right sums, the same in every run.
#include <gtest/gtest.h>

#include "runtime/switch/simulation/simulation.h"

namespace nzcl::simulation {
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

/// With so many ranks few rounds lose nothing. The time that others take to repeat must not be taken for a
/// round trip, and no rank may wait for a timeout that has become long.
TEST(SwitchSimulation, LossesCostMillisecondsAndNotSecondsWithManyRanks) {
  for (const Case& c : {Case{64, 1, 0.01}, {64, 0.01, 0.01}, {256, 1, 0.001}, {256, 1, 0.01}}) {
    SCOPED_TRACE(::testing::Message() << c.workers << " ranks, density " << c.density << ", loss " << c.loss);
    Scene scene;
    scene.most_packets = 1 << 17;
    scene.limit = std::chrono::milliseconds(100);
    const Outcome o = simulate(scene, c);
    EXPECT_EQ(o.failure, "");
    EXPECT_EQ(o.wrong, 0u);
    ASSERT_TRUE(o.ended);
    EXPECT_LT(o.seconds, 20e-3);
  }
}

/// A rank that asks for what waits in its own queue keeps links busy for nothing. With timeouts that ignore
/// the queue, or take headers for eighths of full packets, half of all packets are sent again here without
/// losses, and a quarter at 1 %.
TEST(SwitchSimulation, ARankDoesNotAskForWhatIsInItsOwnQueue) {
  const auto repeated = [](double loss) {
    double sum = 0;
    for (unsigned seed = 1; seed <= 4; ++seed) {
      Scene scene;
      scene.bits_per_second = 1e9;
      scene.round_trip = std::chrono::microseconds(100);
      scene.mtu = 9000;
      scene.overlap = Overlap::random;
      scene.most_packets = 4 << 20;
      scene.seed = seed;
      scene.limit = std::chrono::seconds(1);
      const Outcome o = simulate(scene, {2, 0.01, loss});
      EXPECT_TRUE(o.ended);
      EXPECT_EQ(o.wrong, 0u);
      sum += o.repeated / 4;
    }
    return sum;
  };
  EXPECT_LT(repeated(0), 0.02);
  EXPECT_LT(repeated(0.01), 0.12);
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
}  // namespace nzcl::simulation
