// How many packets ranks may have under way, on simulated links of different speeds: enough to fill a link,
// and not so many that they wait for each other longer than the timeout, or that a queue overflows.
#include <gtest/gtest.h>

#include "runtime/exchange/switch/port.h"
#include "tests/engine/switch_tensor.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kPieces = 3000;

/// A rack whose packets are as large as Ethernet carries, with as many slots as an aggregator chooses there.
RackSetting setting_of(double bits_per_second, int workers, bool host) {
  RackSetting setting;
  setting.workers = workers;
  setting.link.bits_per_second = bits_per_second;
  setting.link.delay = 5us;
  if (host) setting.aggregator = setting.link;  // one link for what all ranks send
  const PortAddress member{.address = {}, .max_bytes = setting.link.max_bytes, .job = {}};
  setting.piece = common_piece_elements({&member, 1});
  setting.count = std::size_t{setting.piece} * kPieces;
  verbs::SimulatedNetwork network(1);
  setting.slots = slots_for(*network.open(setting.link), workers);
  return setting;
}

struct Outcome {
  double times_the_bound = 0;
  double repeated = 0;  // of each packet, by one rank
};
Outcome outcome_of(const RackSetting& setting) {
  Rack rack(setting);
  EXPECT_TRUE(rack.run(100s)) << rack.failure();
  rack.expect_sums();
  const double packet_bits = 8.0 * (setting.link.max_bytes + setting.link.header_bytes);
  const double bound =
      kPieces * packet_bits / setting.link.bits_per_second * (setting.aggregator ? setting.workers : 1);
  Outcome outcome{std::chrono::duration<double>(rack.network().now()).count() / bound};
  for (int r = 0; r < setting.workers; ++r)
    outcome.repeated += static_cast<double>(rack.worker(r).repeated()) / kPieces / setting.workers;
  return outcome;
}

TEST(SwitchWindow, FillsLinksOfEverySpeedAndRepeatsNextToNothing) {
  for (const double rate : {1e9, 10e9}) {
    for (const int workers : {2, 8}) {
      for (const bool host : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << rate / 1e9 << " Gb/s, " << workers << " ranks, " << (host ? "a host" : "a switch"));
        const Outcome outcome = outcome_of(setting_of(rate, workers, host));
        EXPECT_LT(outcome.times_the_bound, 1.15);
        EXPECT_LT(outcome.repeated, 0.1);
      }
    }
  }
}

/// Then the first packets of all slots are repeated once, too early, and those that follow are not.
TEST(SwitchWindow, ARoundTripLongerThanTheFirstTimeoutIsLearned) {
  RackSetting setting = setting_of(1e9, 2, false);
  setting.link.delay = 6ms;
  Rack rack(setting);
  ASSERT_TRUE(rack.run(100s)) << rack.failure();
  rack.expect_sums();
  EXPECT_LE(rack.worker(0).repeated(), 3 * setting.slots);
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
