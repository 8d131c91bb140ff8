// Tests sleeping: after prepare_wait() has returned true, wait_fd() must become readable for everything that
// poll() would return.
#include <poll.h>

#include "tests/contract/pair.h"

namespace nzcl::verbs::test {
namespace {

constexpr std::uint32_t kRounds = 200;

class WaitTest : public ContractTest {
 protected:
  static bool readable(Endpoint& endpoint) {
    pollfd fd{.fd = endpoint.wait_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, 0) == 1;
  }
  /// Acts as a thread that sleeps: polls `sleeper` only if prepare_wait() returned false or the descriptor
  /// has become readable. `others` is what the other endpoints do meanwhile.
  static AssertionResult sleep_until(Peers& peers, Peer& sleeper, const std::function<bool()>& done,
                                     const std::function<void()>& others) {
    bool asleep = false;
    return peers.until(done, [&] {
      if (!asleep) {
        asleep = sleeper.endpoint->prepare_wait();
      } else {
        others();
        asleep = !readable(*sleeper.endpoint);
      }
      if (!asleep) peers.poll(sleeper);
    });
  }
  static Writes one(Peers& peers, std::uint32_t number) {
    Writes writes;
    const std::size_t bytes = number % 3 == 0 ? 40'000 : 64;
    writes.add(1, {peers[0].segment(0, bytes)}, peers.at(0, 1, 0), number, number);
    return writes;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, WaitTest, ::testing::ValuesIn(all_backends()), backend_name);

#define NZCL_SKIP_WITHOUT_FD(endpoint) \
  if ((endpoint).wait_fd() < 0) GTEST_SKIP() << devices()[0]->name() << " has no descriptor to sleep on"

TEST_P(WaitTest, AnArrivalWakesASleeper) {
  Peers peers(devices(), 2, 64 << 10);
  NZCL_SKIP_WITHOUT_FD(*peers[1].endpoint);
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    SCOPED_TRACE(i);
    const Writes writes = one(peers, i);
    auto rest = writes.all();
    ASSERT_TRUE(sleep_until(
        peers, peers[1], [&] { return peers[1].arrived.size() > i; },
        [&] {
          rest = rest.subspan(peers[0].endpoint->post(rest));
          peers.poll(peers[0]);
        }));
  }
}

TEST_P(WaitTest, WhatCameBeforeIsNotSleptOver) {
  Peers peers(devices(), 2, 64 << 10);
  NZCL_SKIP_WITHOUT_FD(*peers[1].endpoint);
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(peers.post(0, one(peers, i)));
    // The write is under way or has landed, but its receiver has not polled.
    for (int k = 0; k < 20; ++k) peers.poll(peers[0]);
    ASSERT_TRUE(sleep_until(
        peers, peers[1], [&] { return peers[1].arrived.size() > i; }, [&] { peers.poll(peers[0]); }));
  }
}

/// A descriptor that stays readable would keep sleepers awake for ever.
TEST_P(WaitTest, WithNothingToTakeItSleeps) {
  Peers peers(devices(), 2, 64 << 10);
  NZCL_SKIP_WITHOUT_FD(*peers[0].endpoint);
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(peers.post(0, one(peers, i)));
    ASSERT_TRUE(peers.until([&] { return peers[0].written.size() > i && peers[1].arrived.size() > i; }));
    for (std::size_t p = 0; p < 2; ++p) {
      ASSERT_TRUE(
          peers.until([&] { return peers[p].endpoint->prepare_wait() && !readable(*peers[p].endpoint); },
                      [&] { peers.poll(peers[p]); }));
    }
  }
}

TEST_P(WaitTest, AWrittenCompletionWakesItsSender) {
  Peers peers(devices(), 2, 64 << 10);
  NZCL_SKIP_WITHOUT_FD(*peers[0].endpoint);
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(peers.post(0, one(peers, i)));
    ASSERT_TRUE(sleep_until(
        peers, peers[0], [&] { return peers[0].written.size() > i; }, [&] { peers.poll(peers[1]); }));
  }
}

}  // namespace
}  // namespace nzcl::verbs::test
