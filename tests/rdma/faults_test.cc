// Networks that lose, repeat, reorder and corrupt packets, and a device that goes away: sums must stay exact,
// and errors must come in time. tc sets netem on the interfaces under the Soft-RoCE devices
// (scripts/softroce-setup), so these tests must run as root where those devices exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/run_one.h"

namespace nzcl::test {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kDevices = 4;

bool run(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

/// Applies these netem settings to the sending side of every device while it lives.
class Netem {
 public:
  explicit Netem(const std::string& arguments) {
    for (int i = 0; i < kDevices; ++i) {
      // "tc qdisc replace" keeps old parameters of netem, so the old qdisc is deleted first.
      run("tc qdisc delete dev roce" + std::to_string(i) + " root");
      EXPECT_TRUE(run("tc qdisc add dev roce" + std::to_string(i) + " root netem limit 10000 " + arguments))
          << arguments;
    }
  }
  ~Netem() {
    for (int i = 0; i < kDevices; ++i) run("tc qdisc delete dev roce" + std::to_string(i) + " root");
  }
};

struct Fault {
  const char* name;
  const char* netem;
  friend void PrintTo(const Fault& f, std::ostream* out) { *out << f.netem; }
};

Setting lossy(int ranks) {
  Setting s{.transport = "ibverbs", .ranks = ranks, .options = {}};
  s.options.timeout_s = 120;
  s.options.tune.ack_timeout = 12;  // the code of 17 ms, which each lost packet costs
  s.options.pin = Pinning::off;
  s.options.log_level = LogLevel::off;
  return s;
}

class Faults : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/sys/class/net/roce3"))
      GTEST_SKIP() << "no Soft-RoCE devices of scripts/softroce-setup here";
  }
};
class FaultsTest : public Faults, public testing::WithParamInterface<Fault> {};

TEST_P(FaultsTest, SumsAreExact) {
  const Netem netem(GetParam().netem);
  Problem p{.count = 100003, .block = 64, .sparsity = Sparsity::random, .ranks = 3};
  const Expected expected = make_expected(p);
  EXPECT_THAT(run_ranks(lossy(3),
                        [&](Communicator& c) {
                          for (int i = 0; i < 3; ++i) run_one(c, p, expected, static_cast<Form>(i));
                        }),
              Each(""));
}

INSTANTIATE_TEST_SUITE_P(Netem, FaultsTest,
                         testing::Values(Fault{"loss_01", "loss 0.1%"}, Fault{"loss_1", "loss 1%"},
                                         Fault{"loss_5", "loss 5%"}, Fault{"duplicate", "duplicate 2%"},
                                         Fault{"corrupt", "corrupt 1%"},
                                         Fault{"reorder", "delay 1ms reorder 98%"}),
                         [](const auto& fault) { return fault.param.name; });

TEST_F(Faults, ADeviceThatGoesDownEndsTheOperationWithAnError) {
  Setting s = lossy(3);
  s.options.timeout_s = 10;
  s.options.tune.ack_timeout = 14;
  std::atomic<int> rounds{0};
  std::jthread saboteur([&] {
    while (rounds.load() < 6) std::this_thread::yield();
    EXPECT_TRUE(run("ip link set roce1 down"));
  });
  Problem p{.count = 50000, .block = 64, .sparsity = Sparsity::random, .ranks = 3};
  const auto errors = run_ranks(s, [&](Communicator& c) {
    std::vector<std::byte> data = make_input(p, c.rank());
    const auto registered = c.register_buffer(data.data(), data.size());
    while (true) {
      c.allreduce({.input = data.data(), .output = data.data(), .count = p.count, .block_elems = p.block})
          .wait();
      ++rounds;
    }
  });
  saboteur.join();
  EXPECT_THAT(errors, Each(AnyOf(HasSubstr("ibverbs rxe"), HasSubstr("no progress"))));
  EXPECT_TRUE(run("ip link set roce1 up"));
}

}  // namespace
}  // namespace nzcl::test
