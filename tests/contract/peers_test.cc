// Tests several endpoints: which of them reach each other, and what happens when one leaves.
#include <gmock/gmock.h>

#include <numeric>

#include "tests/contract/pair.h"

namespace nzcl::verbs::test {
namespace {

constexpr std::size_t kSlot = 3000;
constexpr std::uint32_t kRounds = 50;

class PeersTest : public ContractTest {
 protected:
  /// Makes kRounds writes from `from` to `to`. Each has a slot of its own, whose number is also its
  /// immediate.
  static Writes stream(Peers& peers, PeerId from, PeerId to) {
    Writes writes;
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      const std::uint32_t slot = from * kRounds + i;
      writes.add(to, {peers[from].segment(slot * kSlot, kSlot)}, peers.at(from, to, slot * kSlot), slot,
                 slot);
    }
    return writes;
  }
  static std::size_t bytes(std::size_t endpoints) { return endpoints * kRounds * kSlot; }
  /// Whether `to` has received all that stream() sends from `from`.
  static AssertionResult has(Peers& peers, PeerId to, PeerId from) {
    return same(std::span(peers[from].source).subspan(from * kRounds * kSlot, kRounds * kSlot),
                std::span(peers[to].target).subspan(from * kRounds * kSlot, kRounds * kSlot));
  }
  static std::vector<std::uint32_t> numbers(std::uint32_t first, std::uint32_t count) {
    std::vector<std::uint32_t> out(count);
    std::iota(out.begin(), out.end(), first);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, PeersTest, ::testing::ValuesIn(all_backends()), backend_name);

TEST_P(PeersTest, SeveralSendersToOneReceiver) {
  Peers peers(devices(), 4, bytes(4));
  for (const PeerId from : {1u, 2u, 3u}) ASSERT_TRUE(peers.post(from, stream(peers, from, 0)));
  ASSERT_TRUE(peers.until([&] { return peers[0].arrived.size() >= 3 * kRounds; }));
  ASSERT_TRUE(peers.drain());
  ASSERT_TRUE(peers.linger());
  EXPECT_THAT(peers[0].arrived, ::testing::UnorderedElementsAreArray(numbers(kRounds, 3 * kRounds)));
  for (const PeerId from : {1u, 2u, 3u}) EXPECT_TRUE(has(peers, 0, from)) << "from " << from;
  EXPECT_TRUE(std::ranges::all_of(std::span(peers[0].target).first(kRounds * kSlot),
                                  [](std::byte b) { return b == kUntouched; }));
}

TEST_P(PeersTest, EverybodyToEverybody) {
  Peers peers(devices(), 4, bytes(4));
  for (PeerId from = 0; from < 4; ++from) {
    for (PeerId to = 0; to < 4; ++to) {
      if (from == to) continue;
      ASSERT_TRUE(peers.post(from, stream(peers, from, to)));
    }
  }
  ASSERT_TRUE(peers.until([&] {
    return std::ranges::all_of(std::array{0, 1, 2, 3},
                               [&](int i) { return peers[i].arrived.size() >= 3 * kRounds; });
  }));
  for (PeerId from = 0; from < 4; ++from) {
    for (PeerId to = 0; to < 4; ++to) {
      if (from == to) continue;
      EXPECT_TRUE(has(peers, to, from)) << from << " to " << to;
    }
  }
}

TEST_P(PeersTest, BothDirectionsAtOnce) {
  Peers peers(devices(), 2, bytes(2));
  const Writes there = stream(peers, 0, 1), back = stream(peers, 1, 0);
  auto rest0 = there.all(), rest1 = back.all();
  ASSERT_TRUE(peers.until([&] {  // both sides post a few writes in turn
    rest0 = rest0.subspan(peers[0].endpoint->post(rest0.first(std::min<std::size_t>(3, rest0.size()))));
    rest1 = rest1.subspan(peers[1].endpoint->post(rest1.first(std::min<std::size_t>(3, rest1.size()))));
    return peers[0].arrived.size() >= kRounds && peers[1].arrived.size() >= kRounds;
  }));
  ASSERT_TRUE(peers.drain());
  EXPECT_THAT(peers[1].arrived, ::testing::UnorderedElementsAreArray(numbers(0, kRounds)));
  EXPECT_THAT(peers[0].arrived, ::testing::UnorderedElementsAreArray(numbers(kRounds, kRounds)));
  EXPECT_TRUE(has(peers, 1, 0));
  EXPECT_TRUE(has(peers, 0, 1));
  EXPECT_EQ(peers[0].written.size(), kRounds);
  EXPECT_EQ(peers[1].written.size(), kRounds);
}

TEST_P(PeersTest, AnEmptyAddressLeavesAPeerOut) {
  Peers peers(devices(), 4, bytes(4), [](PeerId a, PeerId b) { return a + b == 3; });  // 0 with 3, 1 with 2
  for (PeerId from = 0; from < 4; ++from) ASSERT_TRUE(peers.post(from, stream(peers, from, 3 - from)));
  ASSERT_TRUE(peers.until([&] {
    return std::ranges::all_of(std::array{0, 1, 2, 3},
                               [&](int i) { return peers[i].arrived.size() >= kRounds; });
  }));
  for (PeerId to = 0; to < 4; ++to) EXPECT_TRUE(has(peers, to, 3 - to));
}

/// Communicators that share a device end at different times, some of them before they have begun.
TEST_P(PeersTest, AnEndpointMayCloseInTheMiddleWhileOthersOfItsDeviceWork) {
  Peers working(devices(), 2, bytes(2));
  for (int round = 0; round < 24; ++round) {
    Peers brief(devices(), 2, bytes(2));
    const Writes writes = stream(brief, 1, 0);
    for (int polls = 0; polls < round / 3; ++polls) {
      brief[1].endpoint->post(writes.all().first(1));
      brief.poll(brief[1]);
      working.poll();
    }
    brief[round % 2].endpoint.reset();  // with a connection that has been asked for, or accepted
    if (round % 2 == 0) brief.poll(brief[1]);
    for (int polls = 0; polls < 5; ++polls) working.poll();
    brief[0].endpoint.reset();
    brief[1].endpoint.reset();
    for (int polls = 0; polls < 5; ++polls) working.poll();
  }
  ASSERT_TRUE(working.post(0, stream(working, 0, 1)));
  ASSERT_TRUE(working.until([&] { return working[1].arrived.size() >= kRounds; }));
  EXPECT_TRUE(has(working, 1, 0));
}

TEST_P(PeersTest, AnEndpointMayHaveNoPeersAtAll) {
  Peers peers(devices(), 1, 4096);
  ASSERT_TRUE(peers.linger());
  EXPECT_EQ(peers[0].endpoint->in_flight(), 0u);
}

TEST_P(PeersTest, OneLeavesAfterAllHaveDrainedAndTheOthersGoOn) {
  Peers peers(devices(), 3, bytes(3));
  for (const PeerId from : {0u, 1u, 2u}) ASSERT_TRUE(peers.post(from, stream(peers, from, (from + 1) % 3)));
  ASSERT_TRUE(peers.until([&] {
    return std::ranges::all_of(std::array{0, 1, 2},
                               [&](int i) { return peers[i].arrived.size() >= kRounds; });
  }));
  ASSERT_TRUE(peers.drain());
  peers[1].endpoint.reset();
  const std::vector<std::byte> left_behind = peers[1].target;
  peers[2].arrived.clear();
  peers[0].arrived.clear();
  ASSERT_TRUE(peers.post(0, stream(peers, 0, 2)));
  ASSERT_TRUE(peers.post(2, stream(peers, 2, 0)));
  ASSERT_TRUE(
      peers.until([&] { return peers[0].arrived.size() >= kRounds && peers[2].arrived.size() >= kRounds; }));
  EXPECT_TRUE(has(peers, 2, 0));
  EXPECT_TRUE(has(peers, 0, 2));
  EXPECT_TRUE(same(left_behind, peers[1].target));
}

}  // namespace
}  // namespace nzcl::verbs::test
