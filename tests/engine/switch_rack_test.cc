// The switch exchange on a simulated network that loses, repeats, reorders and changes packets. Time is
// virtual, and every result is compared with the plain sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/switch_aggregators.h"
#include "tests/engine/switch_watched.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;

verbs::SimulatedLink link_with(const verbs::DatagramFaults& faults) {
  verbs::SimulatedLink link;
  link.delay = 5us;
  link.faults = faults;
  return link;
}

class SwitchRackOn : public OnEachAggregator {};

TEST_P(SwitchRackOn, ExactForEverySizeDensityAndNumberOfRanks) {
  int cases = 0;
  for (const int workers : {1, 2, 3, 5, 8, 64}) {
    for (const std::size_t count : {1, 16, 17, 128, 16 * 40 + 5}) {
      for (const double density : {0.0, 0.05, 0.5, 1.0}) {
        if (in_kernel() && cases++ % 11 != 0) continue;  // making its interfaces takes time
        for (const std::uint32_t block : {16, 4, 1}) {
          SCOPED_TRACE(::testing::Message() << workers << " ranks, " << count << " values in blocks of "
                                            << block << ", density " << density);
          RackSetting setting;
          setting.workers = workers;
          setting.count = count;
          setting.block = block;
          setting.density = density;
          setting.tensors = 2;
          Rack rack(with_aggregator(setting));
          ASSERT_TRUE(rack.run(10s)) << rack.failure();
          rack.expect_sums();
        }
      }
    }
  }
}

TEST_P(SwitchRackOn, ExactWithLossDuplicatesReorderingAndChangedBytes) {
  for (const double loss : {0.0, 0.01, 0.1, 0.3}) {
    for (unsigned seed = 1; seed <= (in_kernel() ? 1 : 6); ++seed) {
      for (const double density : {0.1, 1.0}) {
        SCOPED_TRACE(::testing::Message() << "loss " << loss << ", seed " << seed << ", density " << density);
        RackSetting setting;
        setting.block = seed % 2 == 0 ? setting.piece : 4;
        setting.workers = 2 + static_cast<int>(seed % 3);
        setting.density = density;
        setting.tensors = 3;
        setting.seed = seed;
        setting.link = link_with(
            {.loss = loss, .duplication = 0.1, .reordering = 0.2, .corruption = 0.05, .detour = 3ms});
        Rack rack(with_aggregator(setting));
        ASSERT_TRUE(rack.run(300s)) << rack.failure();
        rack.expect_sums();
        EXPECT_GT(rack.aggregator().refused(), 0u) << "changed packets are refused";
      }
    }
  }
}

TEST(SwitchRack, ZerosForPiecesThatARankDoesNotHoldChangeNoSum) {
  for (const double density : {0.0, 0.1, 0.6}) {
    RackSetting setting;
    setting.workers = 3;
    setting.density = density;
    setting.tensors = 2;
    setting.zeros = true;
    setting.link = link_with({.loss = 0.05, .duplication = 0.1});
    setting.make = watched([](int, std::span<const std::byte> packet, const std::vector<Sent>& answers) {
      for (const Sent& a : answers) {
        const auto result = open(a.packet, kJob);
        ASSERT_TRUE(result);
        if (result->header.kind != Kind::result) continue;
        EXPECT_EQ(a.packet.size(), packet.size()) << "every packet has room for its answer";
      }
    });
    Rack rack(setting);
    ASSERT_TRUE(rack.run(60s)) << rack.failure();
    rack.expect_sums();
  }
}

TEST_P(SwitchRackOn, AClampedValueFailsTheOperationOnEveryRank) {
  RackSetting setting;
  setting.workers = 3;
  Rack rack(with_aggregator(setting));
  rack.tensor(1, 0).clamps = true;
  EXPECT_FALSE(rack.run(10s));
  EXPECT_THAT(rack.failure(), ::testing::HasSubstr("beyond the exponent that its rank had announced"));
  EXPECT_EQ(rack.aggregator().failure(), "")
      << "the aggregator tells all ranks, and the ranks say what it means";
}

TEST_P(SwitchRackOn, CopiesThatComeSecondsLaterChangeNothing) {
  RackSetting setting;
  setting.tensors = 4;
  setting.count = 16 * 400;
  setting.link = link_with({.loss = 0.02, .duplication = 0.3, .detour = 2s});
  Rack rack(with_aggregator(setting));
  ASSERT_TRUE(rack.run(100s)) << rack.failure();
  rack.expect_sums();
}

TEST_P(SwitchRackOn, ARankMayComeASecondLate) {
  RackSetting setting;
  setting.workers = 3;
  setting.late = {0s, 1s, 500ms};
  setting.link = link_with({.loss = 0.1});
  Rack rack(with_aggregator(setting));
  EXPECT_FALSE(rack.run(900ms));
  ASSERT_TRUE(rack.worker(0).missing());
  EXPECT_EQ(rack.worker(0).missing()->first, 1);
  EXPECT_EQ(rack.worker(0).missing()->count, 1);
  EXPECT_TRUE(rack.worker(0).missing()->opening);
  Rack again(with_aggregator(setting));
  ASSERT_TRUE(again.run(60s)) << again.failure();
  again.expect_sums();
  // Repetitions are backed off: a rank that waits for a second does not flood the aggregator.
  EXPECT_LT(again.worker(0).repeated(), 40u * setting.slots);
}

TEST(SwitchRack, WithoutLossEachRankSendsItsPiecesAndTheHeadersOnce) {
  RackSetting setting;
  setting.count = 16 * 1000;
  setting.density = 0.1;
  setting.link = link_with({});
  Rack rack(setting);
  ASSERT_TRUE(rack.run(10s)) << rack.failure();
  for (int r = 0; r < 2; ++r) EXPECT_EQ(rack.worker(r).repeated(), 0u);
  // A round for each piece that some rank holds, and an opening for each slot.
  EXPECT_EQ(rack.aggregator().completed(), rack.tensor(0, 0).stored + setting.slots);
  EXPECT_LT(rack.tensor(0, 0).stored, 250u);
}

TEST_P(SwitchRackOn, GoesOnWhenOtherThreadsAreStillLookingThroughTheTensor) {
  RackSetting setting;
  Rack rack(with_aggregator(setting));
  rack.tensor(0, 0).blind = 50;
  rack.tensor(1, 0).blind = 5;
  ASSERT_TRUE(rack.run(10s)) << rack.failure();
  rack.expect_sums();
}

TEST_P(SwitchRackOn, ARankMayComeASecondLateToANetworkOfAllFaults) {
  RackSetting setting;
  setting.workers = 4;
  setting.density = 0.5;
  setting.tensors = 2;
  setting.late = {0s, 1s, 300ms};
  setting.link =
      link_with({.loss = 0.3, .duplication = 0.1, .reordering = 0.2, .corruption = 0.05, .detour = 3ms});
  Rack rack(with_aggregator(setting));
  ASSERT_TRUE(rack.run(300s)) << rack.failure();
  rack.expect_sums();
}

INSTANTIATE_TEST_SUITE_P(Aggregators, SwitchRackOn, ::testing::ValuesIn(kAllSummers), name_of);

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
