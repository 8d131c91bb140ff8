// Tests completions: one for each write, counted by in_flight(). Also tests what post() does when there is no
// room.
#include <gmock/gmock.h>

#include <numeric>

#include "tests/contract/pair.h"

namespace nzcl::verbs::test {
namespace {

class CompletionTest : public ContractTest {};
INSTANTIATE_TEST_SUITE_P(Transports, CompletionTest, ::testing::ValuesIn(all_backends()), backend_name);

/// Makes `count` writes of `bytes` bytes each. Write i goes from slot i to slot i and has the immediate i.
Writes slots(Peers& peers, std::size_t count, std::size_t bytes) {
  Writes writes;
  for (std::uint32_t i = 0; i < count; ++i)
    writes.add(1, {peers[0].segment(i * bytes, bytes)}, peers.at(0, 1, i * bytes), i, i);
  return writes;
}

TEST_P(CompletionTest, EveryWriteIsWrittenOnceWithItsContext) {
  Peers peers(devices(), 2, 64 << 10);
  std::vector<std::uint64_t> contexts{0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, 0xdeadbeef};
  Writes writes;
  for (std::size_t i = 0; i < contexts.size(); ++i)
    writes.add(1, {peers[0].segment(i, 10'000 * i + 1)}, peers.at(0, 1, 0),
               i % 2 ? std::optional<std::uint32_t>(7) : std::nullopt, contexts[i]);
  ASSERT_TRUE(peers.post(0, writes));
  ASSERT_TRUE(peers.drain());
  ASSERT_TRUE(peers.until([&] { return peers[1].arrived.size() >= 2; }));
  ASSERT_TRUE(peers.linger());
  std::ranges::sort(contexts);
  std::ranges::sort(peers[0].written);
  EXPECT_EQ(peers[0].written, contexts);
  EXPECT_EQ(peers[1].arrived, (std::vector<std::uint32_t>{7, 7}));
  EXPECT_TRUE(peers[0].arrived.empty());
  EXPECT_TRUE(peers[1].written.empty());
}

TEST_P(CompletionTest, MoreWritesThanMayBePosted) {
  const std::size_t bytes = 100, count = 3 * limits().max_posted + 7;
  Peers peers(devices(), 2, count * bytes);
  const Writes writes = slots(peers, count, bytes);
  Endpoint& sender = *peers[0].endpoint;
  auto rest = writes.all();
  std::size_t refused = 0;
  ASSERT_TRUE(peers.until([&] {
    for (std::size_t accepted = 1; accepted > 0 && !rest.empty();) {  // until post() accepts no more
      const std::size_t before = sender.in_flight();
      accepted = sender.post(rest);
      rest = rest.subspan(accepted);
      EXPECT_EQ(sender.in_flight(), before + accepted);
      EXPECT_LE(sender.in_flight(), limits().max_posted);
    }
    refused += !rest.empty();
    return rest.empty();
  }));
  EXPECT_GE(refused, 1u);
  ASSERT_TRUE(peers.until([&] { return peers[1].arrived.size() >= count; }));
  ASSERT_TRUE(peers.drain());
  ASSERT_TRUE(peers.linger());
  std::vector<std::uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0u);
  EXPECT_THAT(peers[1].arrived, ::testing::UnorderedElementsAreArray(all));
  EXPECT_EQ(peers[0].written.size(), count);
  EXPECT_TRUE(same(peers[0].source, peers[1].target));
}

TEST_P(CompletionTest, InFlightIsWhatWasAcceptedAndNotYetReturned) {
  const std::size_t bytes = 64, count = std::min<std::size_t>(limits().max_posted, 20);
  Peers peers(devices(), 2, count * bytes);
  Endpoint& sender = *peers[0].endpoint;
  EXPECT_EQ(sender.in_flight(), 0u);
  EXPECT_EQ(sender.post({}), 0u);
  const Writes writes = slots(peers, count, bytes);
  std::size_t accepted = 0;
  ASSERT_TRUE(peers.until([&] {
    accepted += sender.post(writes.all().subspan(accepted));
    EXPECT_EQ(sender.in_flight(), accepted - peers[0].written.size());
    return accepted == count;
  }));
  ASSERT_TRUE(peers.until([&] {
    EXPECT_EQ(sender.in_flight(), accepted - peers[0].written.size());
    return sender.in_flight() == 0;
  }));
  EXPECT_EQ(peers[0].written.size(), count);
  EXPECT_EQ(peers[1].endpoint->in_flight(), 0u) << "an arrival does not count as a write of the receiver";
}

TEST_P(CompletionTest, PollFillsNoMoreThanItsSpan) {
  const std::size_t bytes = 64, count = std::min<std::size_t>(limits().max_posted, 10);
  Peers peers(devices(), 2, count * bytes);
  ASSERT_TRUE(peers.post(0, slots(peers, count, bytes)));
  std::size_t arrived = peers[1].arrived.size();
  ASSERT_TRUE(peers.until([&] { return arrived == count; },
                          [&] {
                            peers.poll(peers[0]);
                            EXPECT_EQ(peers[1].endpoint->poll({}), 0u);
                            std::array<Completion, 3> out;
                            out[1].context = out[2].context = 4711;
                            const std::size_t n = peers[1].endpoint->poll(std::span(out).first(1));
                            EXPECT_LE(n, 1u);
                            EXPECT_EQ(out[1].context, 4711u);
                            EXPECT_EQ(out[2].context, 4711u);
                            arrived += n;
                          }));
}

TEST_P(CompletionTest, OrderedMeansAfterAllEarlierWrites) {
  if (!limits().ordered) GTEST_SKIP() << devices()[0]->name() << " promises no order";
  constexpr std::size_t kRounds = 60, kSlot = 30'000;
  Peers peers(devices(), 2, kRounds * kSlot);
  std::size_t late = 0;
  // The data of this and all earlier rounds must be visible.
  peers[1].on_completion = [&](const Completion& c) {
    const std::size_t bytes = (c.immediate + 1) * kSlot;
    late += !same(std::span(peers[0].source).first(bytes), std::span(peers[1].target).first(bytes));
  };
  Writes writes;
  for (std::uint32_t i = 0; i < kRounds; ++i) {  // a large write without immediate, then a small one with it
    writes.add(1, {peers[0].segment(i * kSlot, kSlot - 8)}, peers.at(0, 1, i * kSlot));
    writes.add(1, {peers[0].segment((i + 1) * kSlot - 8, 8)}, peers.at(0, 1, (i + 1) * kSlot - 8), i);
  }
  ASSERT_TRUE(peers.post(0, writes));
  ASSERT_TRUE(peers.until([&] { return peers[1].arrived.size() == kRounds; }));
  EXPECT_TRUE(std::ranges::is_sorted(peers[1].arrived));
  EXPECT_EQ(late, 0u);
}

}  // namespace
}  // namespace nzcl::verbs::test
