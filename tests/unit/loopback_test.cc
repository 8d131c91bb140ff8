// Tests that the loopback network injects the faults that it is told to inject, and refuses what an RDMA
// device would refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "nzcl/error.h"
#include "verbs/loopback/network.h"

namespace nzcl::verbs {
namespace {

using ::testing::HasSubstr;
using Kind = Completion::Kind;

constexpr std::size_t kEndpoints = 3;

/// Endpoint 0 has the faults and writes, and endpoints 1 and 2 receive. Write number i puts byte i + 1 at
/// position i.
struct Rig {
  void open(const LoopbackOptions& options) {
    std::vector<std::string> addresses;
    for (PeerId i = 0; i < kEndpoints; ++i) {
      devices.push_back(network.device(i == 0 ? options : LoopbackOptions{}));
      targets.push_back(std::vector<std::byte>(256));
      regions.push_back(devices[i]->register_memory(targets[i], MemoryKind::host));
      endpoints.push_back(devices[i]->open_endpoint({.self = i, .peers = kEndpoints}));
      addresses.push_back(i == 0 ? "" : endpoints[i]->address_for(0));
    }
    endpoints[0]->connect(addresses, Clock::now());
    source.resize(256);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i + 1);
    source_region = devices[0]->register_memory(source, MemoryKind::host);
  }
  /// Posts the write with this number by itself. The number is also its immediate and its context.
  std::size_t post(std::uint32_t number, PeerId to = 1) {
    const Segment segment{&source[number], 1, source_region.get()};
    return post(number, to, {&segment, 1}, regions[to]->remote().offset(number));
  }
  std::size_t post(std::uint32_t number, PeerId to, std::span<const Segment> segments,
                   const RemoteMemory& target) {
    const Write write{
        .peer = to, .segments = segments, .target = target, .immediate = number, .context = number};
    return endpoints[0]->post({&write, 1});
  }
  std::vector<Completion> poll(std::size_t endpoint = 0) {
    std::vector<Completion> out(256);
    out.resize(endpoints[endpoint]->poll(out));
    return out;
  }
  std::vector<Completion> poll_often(int times) {
    std::vector<Completion> all;
    for (int i = 0; i < times; ++i) std::ranges::copy(poll(), std::back_inserter(all));
    return all;
  }
  std::vector<std::uint32_t> arrivals(std::size_t endpoint) {
    std::vector<std::uint32_t> out;
    for (const Completion& c : poll(endpoint)) out.push_back(c.immediate);
    return out;
  }
  /// Expects that the next poll of endpoint 0 reports one completion only: the write to `peer` failed, with
  /// this text.
  void expect_failure(PeerId peer, const std::string& words) {
    const auto completions = poll();
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].kind, Kind::failed);
    EXPECT_EQ(completions[0].peer, peer);
    EXPECT_THAT(endpoints[0]->failure(), HasSubstr(words));
  }

  LoopbackNetwork network;
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<std::vector<std::byte>> targets;
  std::vector<std::byte> source;
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  std::unique_ptr<MemoryRegion> source_region;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
};

class LoopbackTest : public ::testing::Test, protected Rig {};

template <typename T>
LoopbackOptions with(T LoopbackFaults::*fault, std::uint32_t value) {
  LoopbackOptions options;
  options.faults.*fault = value;
  return options;
}

TEST_F(LoopbackTest, FromTheScriptedWriteOnAllFail) {
  open(with(&LoopbackFaults::fail_at, 2));
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_EQ(post(i, i == 3 ? 2 : 1), 1u);
  EXPECT_EQ(endpoints[0]->in_flight(), 4u);
  const auto completions = poll();
  ASSERT_EQ(completions.size(), 4u);
  EXPECT_EQ(completions[0].kind, Kind::written);
  EXPECT_EQ(completions[1].kind, Kind::written);
  EXPECT_EQ(completions[2].kind, Kind::failed);
  EXPECT_EQ(completions[2].peer, 1u);
  EXPECT_EQ(completions[3].kind, Kind::failed);
  EXPECT_EQ(completions[3].peer, 2u);
  EXPECT_THAT(endpoints[0]->failure(), HasSubstr("peer 2"));
  EXPECT_EQ(endpoints[0]->in_flight(), 0u);
  EXPECT_EQ(arrivals(1), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_TRUE(arrivals(2).empty());
  EXPECT_EQ(targets[1][1], std::byte{2});
  EXPECT_EQ(targets[1][2], std::byte{0}) << "lost: nothing lands";
}

TEST_F(LoopbackTest, FromTheScriptedWriteOnNothingIsHeardOfAnyMore) {
  open(with(&LoopbackFaults::stall_at, 1));
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_EQ(post(i), 1u);
  const auto completions = poll_often(100);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].context, 0u);
  EXPECT_EQ(arrivals(1), (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(targets[1][1], std::byte{0});
  EXPECT_EQ(endpoints[0]->in_flight(), 2u) << "accepted, and never completed";
}

TEST_F(LoopbackTest, DelayedWritesOvertakeEachOther) {
  open(with(&LoopbackFaults::delay_polls, 8));
  for (std::uint32_t i = 0; i < 40; ++i) ASSERT_EQ(post(i), 1u);
  EXPECT_TRUE(arrivals(1).empty()) << "nothing lands before the sender polls";
  EXPECT_EQ(poll_often(8).size(), 40u);
  const auto came = arrivals(1);
  EXPECT_EQ(came.size(), 40u);
  EXPECT_FALSE(std::ranges::is_sorted(came));
}

TEST_F(LoopbackTest, WithOrderTheyOvertakeOnlyThoseToOtherPeers) {
  auto options = with(&LoopbackFaults::delay_polls, 8);
  options.limits.ordered = true;
  open(options);
  for (std::uint32_t i = 0; i < 40; ++i) ASSERT_EQ(post(i, 1 + i % 2), 1u);
  const auto completions = poll_often(8);
  EXPECT_EQ(completions.size(), 40u);
  EXPECT_FALSE(std::ranges::is_sorted(completions, {}, &Completion::context));
  for (const std::size_t receiver : {1u, 2u}) {
    const auto came = arrivals(receiver);
    EXPECT_EQ(came.size(), 20u);
    EXPECT_TRUE(std::ranges::is_sorted(came)) << "at " << receiver;
  }
}

TEST_F(LoopbackTest, TheSameSeedDoesTheSame) {
  const auto run = [](std::uint64_t seed) {
    Rig again;
    auto options = with(&LoopbackFaults::delay_polls, 8);
    options.faults.seed = seed;
    again.open(options);
    for (std::uint32_t i = 0; i < 40; ++i) again.post(i);
    again.poll_often(8);
    return again.arrivals(1);
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

TEST_F(LoopbackTest, AcceptsAtMostWhatItIsTold) {
  open(with(&LoopbackFaults::accept_at_most, 3));
  const Segment segment{source.data(), 1, source_region.get()};
  const Write write{.peer = 1, .segments = {&segment, 1}, .target = regions[1]->remote(), .immediate = {}};
  const std::vector<Write> writes(10, write);
  std::array<int, 4> seen{};
  for (int i = 0; i < 60; ++i) {
    const std::size_t n = endpoints[0]->post(writes);
    ASSERT_GE(n, 1u);
    ASSERT_LE(n, 3u);
    ++seen[n];
    EXPECT_EQ(poll().size(), n);
  }
  for (const std::size_t n : {1u, 2u, 3u}) EXPECT_GT(seen[n], 0) << n;
}

TEST_F(LoopbackTest, HoldsNoMoreThanMaxPosted) {
  LoopbackOptions options;
  options.limits.max_posted = 5;
  open(options);
  for (std::uint32_t i = 0; i < 5; ++i) ASSERT_EQ(post(i), 1u);
  EXPECT_EQ(post(5), 0u) << "landed, but nobody has taken their completions";
  EXPECT_EQ(endpoints[0]->in_flight(), 5u);
  EXPECT_EQ(poll().size(), 5u);
  EXPECT_EQ(post(5), 1u);
}

TEST_F(LoopbackTest, RefusesWhatIsBeyondItsLimits) {
  LoopbackOptions options;
  options.limits.max_segments = 2;
  options.limits.max_write_bytes = 10;
  open(options);
  const auto target = regions[1]->remote();
  const std::array<Segment, 3> segments{Segment{&source[0], 5, source_region.get()},
                                        Segment{&source[5], 5, source_region.get()},
                                        Segment{&source[0], 1, source_region.get()}};
  ASSERT_EQ(post(0, 1, std::span(segments).first(2), target), 1u);
  EXPECT_EQ(poll().at(0).kind, Kind::written);
  ASSERT_EQ(post(1, 1, segments, target), 1u);
  expect_failure(1, "outside the limits");
  const Segment too_long{&source[0], 11, source_region.get()};
  ASSERT_EQ(post(2, 1, {&too_long, 1}, target), 1u);
  expect_failure(1, "outside the limits");
  const Segment empty{&source[0], 0, source_region.get()};
  ASSERT_EQ(post(3, 1, {&empty, 1}, target), 1u);
  expect_failure(1, "outside the limits");
  EXPECT_EQ(arrivals(1), (std::vector<std::uint32_t>{0}));
}

TEST_F(LoopbackTest, RefusesMemoryThatIsNotTheTargets) {
  open({});
  const Segment segment{source.data(), 2, source_region.get()};
  const auto target = regions[1]->remote();
  post(0, 1, {&segment, 1}, target.offset(255));
  expect_failure(1, "the target is not registered memory");
  post(0, 1, {&segment, 1}, {target.address - 1, target.key});
  expect_failure(1, "the target is not registered memory");
  post(0, 1, {&segment, 1}, {target.address, 4711});
  expect_failure(1, "the target is not registered memory");
  regions[1].reset();
  post(0, 1, {&segment, 1}, target);
  expect_failure(1, "the target is not registered memory");
  EXPECT_EQ(targets[1], std::vector<std::byte>(256));
}

TEST_F(LoopbackTest, WritesToNobodyFail) {
  open({});
  endpoints[2].reset();
  post(0, 2);
  expect_failure(2, "peer 2: the endpoint is gone");
  const Segment segment{source.data(), 1, source_region.get()};
  post(1, 0, {&segment, 1}, regions[0]->remote());
  expect_failure(0, "not connected");
  EXPECT_EQ(targets[2], std::vector<std::byte>(256));
}

TEST_F(LoopbackTest, ConnectingToAnEndpointThatIsGoneThrows) {
  open({});
  auto gone = devices[1]->open_endpoint({.self = 1, .peers = kEndpoints});
  const std::string address = gone->address_for(0);
  gone.reset();
  const std::vector<std::string> addresses{"", address, ""};
  EXPECT_THROW(endpoints[0]->connect(addresses, Clock::now()), Error);
}

}  // namespace
}  // namespace nzcl::verbs
