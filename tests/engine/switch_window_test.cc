// How many packets ranks have under way, on simulated links of different speeds: enough to fill a link, and
// not so many that they wait for each other longer than the timeout, or that a queue overflows.
#include <gtest/gtest.h>

#include "runtime/switch/port.h"
#include "tests/engine/switch_rack.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;

/// A rack whose packets are as large as Ethernet carries, with as many slots as an aggregator chooses there.
/// The first tensor lets windows grow.
RackSetting setting_of(double bits_per_second, Time round_trip, int workers, bool host,
                       std::uint32_t pieces) {
  RackSetting setting;
  setting.workers = workers;
  setting.link.bits_per_second = bits_per_second;
  setting.link.delay = round_trip / 4;
  if (host) setting.aggregator = setting.link;  // one link for what all ranks send
  const PortAddress member{.address = {}, .max_bytes = setting.link.max_bytes, .job = {}};
  setting.piece = common_piece_elements({&member, 1});
  setting.count = std::size_t{setting.piece} * pieces;
  verbs::SimulatedNetwork network(1);
  const auto port = network.open(setting.link);
  setting.slots = slots_for(*port);
  setting.window = window_for(*port, workers);
  return setting;
}

/// What no rank can be faster than: its link, or the round trips of as many packets as there are slots.
double bound_of(const RackSetting& s) {
  const double pieces = static_cast<double>(s.count) / s.piece;
  const double packet_bits = 8.0 * static_cast<double>(s.link.max_bytes + s.link.header_bytes);
  const double wire = pieces * packet_bits / s.link.bits_per_second * (s.aggregator ? s.workers : 1);
  const double used = slots_used(static_cast<std::uint32_t>(pieces), s.slots);
  return std::max(wire, pieces / used * 4 * std::chrono::duration<double>(s.link.delay).count());
}

double repeated(Rack& rack, const RackSetting& setting) {
  double all = 0;
  for (int r = 0; r < setting.workers; ++r) all += static_cast<double>(rack.worker(r).repeated());
  return all / setting.workers * setting.piece / static_cast<double>(setting.count);
}

/// A window that begins far below what a link holds doubles with each round trip.
TEST(SwitchWindow, FillsLinksOfEverySpeedAndRepeatsNextToNothing) {
  for (const double rate : {1e9, 10e9, 100e9}) {
    for (const Time round_trip : {10us, 100us, 1000us}) {
      for (const int workers : {2, 8, 64}) {
        for (const bool host : {false, true}) {
          SCOPED_TRACE(::testing::Message() << rate / 1e9 << " Gb/s, " << round_trip.count() << " ns, "
                                            << workers << " ranks, " << (host ? "a host" : "a switch"));
          const std::uint32_t pieces = workers == 2 ? 8000 : workers == 8 ? 3000 : 1000;
          const RackSetting setting = setting_of(rate, round_trip, workers, host, pieces);
          Rack rack(setting);
          ASSERT_TRUE(rack.run(100s)) << rack.failure();
          rack.expect_sums();
          EXPECT_LT(rack.seconds(),
                    1.05 * bound_of(setting) + 8e-9 * static_cast<double>(round_trip.count()));
          EXPECT_LT(repeated(rack, setting), 0.01);
        }
      }
    }
  }
}

/// Then the first packets of all slots are repeated once, too early, and those that follow are not.
TEST(SwitchWindow, ARoundTripLongerThanTheFirstTimeoutIsLearned) {
  RackSetting setting = setting_of(1e9, 24ms, 2, false, 8000);
  Rack rack(setting);
  ASSERT_TRUE(rack.run(100s)) << rack.failure();
  rack.expect_sums();
  EXPECT_LE(rack.worker(0).repeated(), 3 * setting.slots);
}

/// Each rank then holds its window on slots that others have not sent, or in which they have lost something.
/// A window of one packet lets go of each of those only at a timeout, which takes long, but comes to an end.
TEST(SwitchWindow, RanksWithDifferentWindowsComeToAnEndWithLosses) {
  for (const double loss : {0.0, 0.05, 0.3}) {
    for (unsigned seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(::testing::Message() << "loss " << loss << ", seed " << seed);
      RackSetting setting{
          .workers = 4, .slots = 16, .count = 16 * 300, .density = 0.7, .tensors = 2, .seed = seed};
      const bool least = seed % 2 == 0;
      setting.windows =
          least ? std::vector<std::uint32_t>{1, 2, 16, 1} : std::vector<std::uint32_t>{4, 5, 16, 4};
      setting.link.delay = 5us;
      setting.link.faults = {.loss = loss, .duplication = 0.1, .reordering = 0.3, .detour = 300us};
      Rack rack(setting);
      ASSERT_TRUE(rack.run(least ? 300s : 60s)) << rack.failure();
      rack.expect_sums();
    }
  }
}

/// Three packets in 30 us are 10 us for each, and a slower answer later does not change that.
TEST(SendWindow, KnowsHowLongWhatIsUnderWayTakes) {
  SendWindow window(8, 4);
  EXPECT_EQ(window.queueing(), 0us) << "not known";
  for (std::uint32_t s = 0; s < 4; ++s) window.sent(s, 0us, 1, 1, true);
  for (std::uint32_t s = 0; s < 3; ++s) window.answered(s, 30us, 1);
  window.measured(2, 30us, 30us);
  EXPECT_EQ(window.queueing(), 10us) << "one is left";
  window.answered(3, 100us, 1);
  window.measured(3, 100us, 100us);
  EXPECT_EQ(window.queueing(), 0us) << "none is left";
  window.sent(0, 100us, 1, 1, true);
  window.sent(1, 100us, 1, 1, true);
  EXPECT_EQ(window.queueing(), 20us);
}

/// Headers are back sooner than as many eighths of full packets would be.
TEST(SendWindow, HeadersSayLittleOfHowLongFullPacketsTake) {
  constexpr double kHeader = 1.0 / 128;
  SendWindow window(16, 4);
  for (std::uint32_t s = 0; s < 8; ++s) window.sent(s, 0us, kHeader, kHeader, true);
  for (std::uint32_t s = 0; s < 8; ++s) window.answered(s, 10us, kHeader);
  window.measured(7, 10us, 10us);
  window.sent(0, 10us, 1, 1, true);
  EXPECT_EQ(window.queueing(), 160us);
  window.sent(1, 10us, kHeader, 1, true);
  EXPECT_EQ(window.queueing(), 320us) << "its result is expected to be full";
}

TEST(SendWindow, PacketsThatAreShortCountForAPart) {
  EXPECT_EQ(SendWindow::part_of_packet(0), 0.125) << "a header takes a place in buffers";
  EXPECT_EQ(SendWindow::part_of_packet(0.25), 0.25);
  EXPECT_EQ(SendWindow::part_of_packet(0.26), 0.375);
  EXPECT_EQ(SendWindow::part_of_packet(3), 1);
  SendWindow window(16, 2);
  for (std::uint32_t s = 0; s < 8; ++s) {
    EXPECT_TRUE(window.open()) << s;
    window.sent(s, 0us, 0.25, 0.1, true);
  }
  EXPECT_FALSE(window.open());
  window.answered(3, 30us, 0.25);
  EXPECT_TRUE(window.open());
}

TEST(SendWindow, LetsGoOfWhatIsLost) {
  SendWindow window(8, 4);
  for (std::uint32_t s = 0; s < 4; ++s) window.sent(s, 0us, 1, 1, true);
  EXPECT_FALSE(window.open());
  std::vector<std::uint32_t> lost;
  for (std::uint32_t s = 1; s < 4; ++s) {
    window.answered(s, 10us, 1);
    window.note_answer(s);
    window.find_lost([&](std::uint32_t slot) { lost.push_back(slot); });
    EXPECT_EQ(lost.size(), s == 3 ? 1u : 0u) << "three later answers tell";
  }
  EXPECT_EQ(lost.at(0), 0u);
  for (std::uint32_t s = 0; s < 4; ++s) {
    EXPECT_TRUE(window.open());
    window.sent(s, 20us, 1, 1, true);
  }
  EXPECT_FALSE(window.open());
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
