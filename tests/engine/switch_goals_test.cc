// How fast the switch exchange is on a simulated network beside the wire's bound, without losses and with
// them.
#include <gtest/gtest.h>

#include "runtime/switch/port.h"
#include "tests/engine/switch_rack.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;

/// What the wire takes for the values alone, over the time of a dense allreduce.
double share_of_bound(int workers, double bits_per_second, double loss) {
  constexpr std::uint32_t kPieces = 12000;
  RackSetting setting;
  setting.workers = workers;
  setting.link.bits_per_second = bits_per_second;
  setting.link.delay = 5us;
  setting.link.faults.loss = loss;
  const PortAddress member{.address = {}, .max_bytes = setting.link.max_bytes, .job = {}};
  setting.piece = common_piece_elements({&member, 1});
  setting.count = std::size_t{setting.piece} * kPieces;
  verbs::SimulatedNetwork network(1);
  const auto port = network.open(setting.link);
  setting.slots = slots_for(*port);
  setting.window = window_for(*port, workers);
  Rack rack(setting);
  EXPECT_TRUE(rack.run(100s)) << rack.failure();
  rack.expect_sums();
  return static_cast<double>(setting.count) * 32 / bits_per_second / rack.seconds();
}

TEST(SwitchGoals, NineTenthsOfTheWireAndLittleLessWithLosses) {
  for (const double rate : {1e9, 10e9}) {
    for (const int workers : {2, 4, 8}) {
      SCOPED_TRACE(::testing::Message() << rate / 1e9 << " Gb/s, " << workers << " ranks");
      const double clean = share_of_bound(workers, rate, 0);
      EXPECT_GT(clean, 0.9) << "headers count as lost";
      EXPECT_GT(share_of_bound(workers, rate, 0.001), 0.95 * clean);
      EXPECT_GT(share_of_bound(workers, rate, 0.01), 0.85 * clean);
      EXPECT_GT(share_of_bound(workers, rate, 0.05), 0.5 * clean);
    }
  }
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
