// The program of nzcl_switch beside SlotServer: the same packets get the same answers, with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runtime/switch/port.h"
#include "tests/engine/kernel_switch.h"
#include "tests/engine/switch_rack.h"

namespace nzcl::engine::slot_pool::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// Runs a rack whose aggregator is SlotServer, and shows the kernel every packet that this one gets.
void run_beside(RackSetting setting) {
  std::string why_not;
  const auto kernel =
      KernelServer::make({setting.workers, setting.slots, setting.piece, kJob, true}, why_not);
  if (!kernel) GTEST_SKIP() << why_not;
  std::size_t packets = 0, answered = 0;
  setting.zeros = true;
  setting.make = watched([&](int rank, std::span<const std::byte> packet, const std::vector<Sent>& expected) {
    const auto have = kernel->answers_to(rank, packet);
    ++packets;
    ASSERT_EQ(have.size(), expected.size()) << "packet " << packets << " of rank " << rank;
    for (std::size_t i = 0; i < have.size(); ++i, ++answered) {
      ASSERT_EQ(have[i].rank, expected[i].rank) << "packet " << packets << " of rank " << rank;
      ASSERT_EQ(have[i].packet, expected[i].packet) << "packet " << packets << " of rank " << rank;
    }
  });
  Rack rack(setting);
  ASSERT_TRUE(rack.run(300s)) << rack.failure();
  rack.expect_sums();
  EXPECT_GT(answered, 0u);
  EXPECT_EQ(kernel->failure(), "");
  EXPECT_EQ(kernel->counts().completed, rack.aggregator().completed());
  EXPECT_EQ(kernel->counts().refused, rack.aggregator().refused());
}

TEST(KernelSwitch, DenseAndWithoutLoss) { run_beside({.workers = 2}); }

TEST(KernelSwitch, SparseAndWithoutLoss) {
  run_beside({.workers = 3, .count = 16 * 300, .density = 0.2, .tensors = 3});
}

TEST(KernelSwitch, AsManyRanksAsItCanHave) {
  run_beside({.workers = 64, .count = 16 * 20, .density = 0.5, .tensors = 2});
}

TEST(KernelSwitch, LossDuplicatesReorderingAndChangedBytes) {
  RackSetting setting{.workers = 4, .density = 0.5, .tensors = 3, .seed = 5};
  setting.link.delay = 5us;
  setting.link.faults = {
      .loss = 0.1, .duplication = 0.1, .reordering = 0.2, .corruption = 0.05, .detour = 3ms};
  run_beside(setting);
}

TEST(KernelSwitch, PacketsOfEverySizeThatAPageHolds) {
  RackSetting setting{.workers = 2, .slots = 4, .piece = 840, .count = 840 * 30 + 1, .tensors = 2, .seed = 7};
  setting.link.max_bytes = 4000;
  setting.link.faults = {.loss = 0.05, .duplication = 0.1, .corruption = 0.05};
  run_beside(setting);
}

TEST(KernelSwitch, AMistakeInTheProgramIsAnErrorWithTheVerifiersReason) {
  const auto possible = tools::xdp::is_possible();
  if (!possible.yes) GTEST_SKIP() << possible.detail;
  try {
    tools::xdp::KernelSwitch::load({.interfaces = {}, .broken = true});
    FAIL() << "the kernel took a program that reads behind its packet";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::system) << "\"unavailable\" would be skipped by tests";
    EXPECT_THAT(e.what(), HasSubstr("the kernel refuses the program"));
    EXPECT_THAT(e.what(), HasSubstr("invalid mem access"));
  }
}

TEST(KernelSwitch, SlotsUpToTheMostThatRanksTake) {
  run_beside({.workers = 2, .slots = kMostSlots, .count = 16 * (kMostSlots + 100)});
}

/// Two ranks, one slot, and packets by hand.
class KernelSwitchByHand : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    kernel_ = KernelServer::make({2, 1, 4, kJob, true}, why_not);
    if (!kernel_) GTEST_SKIP() << why_not;
  }
  static std::vector<std::byte> packet(int rank, std::uint32_t round, std::uint32_t piece, std::uint32_t next,
                                       std::size_t values = 0, std::uint32_t shape = 0, Job job = kJob) {
    std::vector<std::byte> bytes(sizeof(Header) + 4 * values, std::byte{1});
    Header h;
    h.rank = static_cast<std::uint16_t>(rank);
    h.round = round;
    h.piece = piece;
    h.next = next;
    h.shape = shape;
    h.flags = values > 0 ? kHasValues : 0;
    seal(h, job, bytes);
    return bytes;
  }
  unsigned verdict(int rank, const std::vector<std::byte>& bytes) {
    return kernel_->run(rank, bytes, rank).verdict;
  }
  std::unique_ptr<KernelServer> kernel_;
};

TEST_F(KernelSwitchByHand, AStrangersPacketIsDropped) {
  const auto good = packet(0, 0, kNoPiece, 0);
  EXPECT_EQ(verdict(0, packet(0, 0, kNoPiece, 0, 0, 0, {kJob.tag, {5, 7}})), XDP_DROP) << "another key";
  EXPECT_EQ(verdict(0, packet(0, 0, kNoPiece, 0, 0, 0, {1, kJob.key})), XDP_DROP) << "another job";
  EXPECT_EQ(verdict(1, good), XDP_DROP) << "a rank's packet from another rank's address";
  EXPECT_EQ(verdict(0, packet(2, 0, kNoPiece, 0)), XDP_DROP) << "a rank that does not exist";
  auto frame = KernelServer::frame(0, good);
  frame[29] = std::byte{77};  // of the source's address
  EXPECT_EQ(kernel_->run_frame(frame, 0).verdict, XDP_DROP) << "from a stranger's address";
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto changed = good;
    changed[bit / 8] ^= std::byte{1} << bit % 8;
    ASSERT_EQ(verdict(0, changed), XDP_DROP) << "bit " << bit;
  }
  EXPECT_EQ(kernel_->counts().added, 0u);
  EXPECT_EQ(kernel_->counts().refused, 5 + 8 * good.size());
}

TEST_F(KernelSwitchByHand, WhatIsNotForItPasses) {
  const auto good = KernelServer::frame(0, packet(0, 0, kNoPiece, 0));
  const auto changed = [&](std::size_t at, int value) {
    auto frame = good;
    frame[at] = static_cast<std::byte>(value);
    return kernel_->run_frame(frame, 0).verdict;
  };
  EXPECT_EQ(changed(12, 0x86), XDP_PASS) << "no IPv4";
  EXPECT_EQ(changed(14, 0x46), XDP_PASS) << "IPv4 with options";
  EXPECT_EQ(changed(21, 1), XDP_PASS) << "a later fragment, which has no ports";
  EXPECT_EQ(changed(23, 6), XDP_PASS) << "TCP";
  EXPECT_EQ(changed(33, 1), XDP_PASS) << "another host";
  EXPECT_EQ(changed(37, 1), XDP_PASS) << "another port";
  EXPECT_EQ(kernel_->run_frame({good.begin(), good.begin() + 60}, 0).verdict, XDP_PASS) << "too short";
  EXPECT_EQ(kernel_->counts().refused, 0u);
  EXPECT_EQ(kernel_->counts().not_whole, 0u);
}

/// The socket of the pool's address would get the packet without what is around it, as if it were genuine.
TEST_F(KernelSwitchByHand, AGenuinePacketThatIsNotTheWholeFrameIsDroppedAndCounted) {
  const auto good = KernelServer::frame(0, packet(0, 0, kNoPiece, 0));
  const auto changed = [&](std::size_t at, int value) {
    auto frame = good;
    frame[at] = static_cast<std::byte>(value);
    return kernel_->run_frame(frame, 0).verdict;
  };
  EXPECT_EQ(changed(20, 0x20), XDP_DROP) << "a first fragment";
  EXPECT_EQ(changed(17, 1), XDP_DROP) << "another length of the IP packet";
  EXPECT_EQ(changed(39, 1), XDP_DROP) << "another length of the UDP packet";
  auto longer = good;
  longer.resize(good.size() + 4);
  EXPECT_EQ(kernel_->run_frame(longer, 0).verdict, XDP_DROP) << "bytes behind the packet";
  EXPECT_EQ(kernel_->counts().not_whole, 4u);
  EXPECT_EQ(kernel_->counts().added, 0u);
  EXPECT_EQ(kernel_->failure(), "");
}

TEST_F(KernelSwitchByHand, DifferentOperationsAreFoundOut) {
  EXPECT_EQ(verdict(1, packet(1, 0, kNoPiece, 0, 0, 5)), XDP_DROP);
  EXPECT_EQ(kernel_->failure(), "");
  EXPECT_EQ(verdict(0, packet(0, 0, kNoPiece, 0, 0, 6)), XDP_DROP);
  EXPECT_THAT(kernel_->failure(), HasSubstr("ranks 1 and 0 have called different operations"));
  EXPECT_EQ(verdict(0, packet(0, 0, kNoPiece, 0, 0, 5)), XDP_DROP) << "nothing is added after a failure";
  EXPECT_EQ(kernel_->counts().added, 1u);
}

TEST_F(KernelSwitchByHand, WhatNoRankCanSendIsAFailureThatNamesIt) {
  verdict(0, packet(0, 0, kNoPiece, 0));
  EXPECT_EQ(verdict(1, packet(1, 0, kNoPiece, 0)), XDP_REDIRECT);
  EXPECT_EQ(verdict(1, packet(1, 1, 0, kNoPiece, 5)), XDP_DROP) << "more values than a piece has";
  EXPECT_EQ(kernel_->failure(), "rank 1 sent 5 values and exponent 0 for piece 0, which cannot be");
}

TEST_F(KernelSwitchByHand, TwoRanksBehindOneInterfaceAreNamedAndServed) {
  const auto first = packet(0, 0, kNoPiece, kNoPiece), second = packet(1, 0, kNoPiece, kNoPiece);
  kernel_->run(0, first, 0);
  EXPECT_EQ(kernel_->notice(), "");
  EXPECT_EQ(kernel_->run(1, second, 0).verdict, XDP_REDIRECT);
  EXPECT_THAT(kernel_->notice(), HasSubstr("contributions of ranks 0 and 1 have come in at interface port0"));
  EXPECT_EQ(kernel_->failure(), "") << "a stranger's copies look the same";
  EXPECT_EQ(kernel_->run(0, first, 0).verdict, XDP_TX) << "rank 0 asks for the result that went to rank 1";
  EXPECT_EQ(kernel_->counts().moved, 1u);
}

TEST_F(KernelSwitchByHand, ACopyFromElsewhereMovesNobody) {
  const auto first = packet(0, 0, kNoPiece, kNoPiece), second = packet(1, 0, kNoPiece, kNoPiece);
  EXPECT_EQ(kernel_->run(0, first, 0).verdict, XDP_DROP) << "it is added";
  EXPECT_EQ(kernel_->run(0, first, 0).verdict, XDP_TX) << "rank 0 is told to wait";
  EXPECT_EQ(kernel_->counts().elsewhere, 0u);
  EXPECT_EQ(kernel_->run(0, first, 1).verdict, XDP_TX) << "from another interface, and back to there";
  EXPECT_EQ(kernel_->counts().elsewhere, 1u);
  EXPECT_EQ(kernel_->run(1, second, 1).verdict, XDP_REDIRECT) << "rank 1 is alone behind its interface";
  auto frame = KernelServer::frame(0, first);
  frame[11] = std::byte{99};  // of the source's MAC address
  const auto answer = kernel_->run_frame(frame, 0);
  EXPECT_EQ(answer.verdict, XDP_TX) << "from another host behind the interface";
  EXPECT_EQ(answer.bytes[5], std::byte{99}) << "and back to that host";
  EXPECT_EQ(answer.bytes.size(), frame.size()) << "nobody gets more than he has sent";
  EXPECT_EQ(kernel_->counts().elsewhere, 2u);
  EXPECT_EQ(kernel_->run(0, first, 0).verdict, XDP_TX) << "rank 0 itself gets the result again";
  EXPECT_EQ(kernel_->counts().elsewhere, 2u) << "from where it was before";
  EXPECT_EQ(kernel_->counts().added, 2u);
  EXPECT_EQ(kernel_->counts().moved, 0u);
}

/// A stranger has seen the packet of rank 1, and is faster: its copy comes first, and where rank 0 is.
TEST_F(KernelSwitchByHand, AStolenHomeStarvesNobody) {
  const auto at_first = [](int rank) { return packet(rank, 0, kNoPiece, 0); };
  const auto later = [](int rank) { return packet(rank, 1, 0, kNoPiece, 4); };
  EXPECT_EQ(kernel_->run(0, at_first(0), 0).verdict, XDP_DROP);
  EXPECT_EQ(kernel_->run(1, at_first(1), 0).verdict, XDP_REDIRECT) << "the copy";
  EXPECT_EQ(kernel_->run(1, at_first(1), 1).verdict, XDP_TX) << "rank 1 gets the result at its own place";
  EXPECT_EQ(kernel_->run(0, at_first(0), 0).verdict, XDP_TX) << "rank 0 as well, if it asks for it";
  EXPECT_EQ(kernel_->run(0, later(0), 0).verdict, XDP_DROP);
  EXPECT_EQ(kernel_->run(1, later(1), 1).verdict, XDP_REDIRECT);
  EXPECT_EQ(kernel_->counts().moved, 2u) << "there and back";
  EXPECT_EQ(kernel_->run(0, later(0), 0).verdict, XDP_TX);
  EXPECT_EQ(kernel_->run(1, later(1), 1).verdict, XDP_TX);
  EXPECT_EQ(kernel_->counts().elsewhere, 2u) << "only the two of the first round";
  EXPECT_EQ(kernel_->failure(), "");
}

TEST_F(KernelSwitchByHand, ThePoolThatGetsANumberAgainBeginsAnew) {
  const auto first = packet(0, 0, kNoPiece, 0);
  EXPECT_EQ(verdict(0, packet(0, 0, kNoPiece, 0, 0, 5)), XDP_DROP) << "added";
  EXPECT_EQ(verdict(1, packet(1, 0, kNoPiece, 0, 0, 6)), XDP_DROP);
  EXPECT_NE(kernel_->failure(), "");
  kernel_->close_pool();
  EXPECT_EQ(verdict(0, first), XDP_PASS) << "nobody sums for this address";
  kernel_->open_pool();
  EXPECT_EQ(kernel_->failure(), "");
  EXPECT_EQ(kernel_->run(1, packet(1, 0, kNoPiece, 0), 0).verdict, XDP_DROP) << "added, where rank 0 was";
  EXPECT_EQ(kernel_->counts().moved, 0u) << "the homes of the pool before mean nothing";
  EXPECT_EQ(kernel_->notice(), "");
}

/// One core is in the program with a packet of the pool, while another one ends the pool and begins the next.
/// Packets are large, so that the program spends most of its time between the look for the pool and the rest.
TEST_F(KernelSwitchByHand, APacketThatIsInTheProgramWhenItsPoolEndsDoesNothingToTheNext) {
  std::string why_not;
  kernel_.reset();
  constexpr std::uint32_t kPiece = 840;  // of the largest packet with which the kernel runs a program
  kernel_ = KernelServer::make({2, 1, kPiece, kJob, true}, why_not);
  ASSERT_TRUE(kernel_) << why_not;
  for (int i = 0; i < 30; ++i) {
    std::atomic<std::uint32_t> round = 0;
    const auto at_first = kernel_->counts().added;
    std::thread network([&] {
      for (unsigned last = XDP_DROP; last != XDP_PASS; ++round) {
        const bool opens = round == 0;
        const std::uint32_t piece = opens ? kNoPiece : round - 1;
        const std::size_t values = opens ? 0 : kPiece;
        for (const int rank : {1, 0}) last = verdict(rank, packet(rank, round, piece, round, values));
      }
    });
    while (round < 3) std::this_thread::yield();
    kernel_->close_pool();
    network.join();  // nobody sums for the address any more
    EXPECT_GE(kernel_->counts().added, at_first + 6) << "these were good packets";
    kernel_->open_pool();
    const auto before = kernel_->counts();
    EXPECT_EQ(kernel_->run(1, packet(1, 0, kNoPiece, 0), 0).verdict, XDP_DROP) << "alone in its pool";
    EXPECT_EQ(kernel_->counts().added, before.added + 1) << "trial " << i;
    EXPECT_EQ(kernel_->counts().moved, before.moved) << "trial " << i << ": a home was known";
    ASSERT_EQ(kernel_->failure() + kernel_->notice(), "") << "trial " << i;
    kernel_->close_pool();
    kernel_->open_pool();
  }
}

TEST_F(KernelSwitchByHand, AClampedValueIsReportedToAll) {
  const auto clamped = [](std::vector<std::byte> bytes) {
    Header h;
    std::memcpy(&h, bytes.data(), sizeof h);
    h.flags |= kClamped;
    seal(h, kJob, bytes);
    return bytes;
  };
  for (const int rank : {0, 1}) verdict(rank, packet(rank, 0, kNoPiece, 0));
  EXPECT_TRUE(kernel_->answers_to(0, clamped(packet(0, 1, 0, kNoPiece, 4))).empty());
  const auto answers = kernel_->answers_to(1, packet(1, 1, 0, kNoPiece, 4));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, kToAll);
  const auto result = open(answers[0].packet, kJob);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->header.flags, kHasValues | kClamped);
}

}  // namespace
}  // namespace nzcl::engine::slot_pool::test
