// Tests that queue pairs are made when they are first needed, on both sides, and for peers that belong to the
// job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "tests/rdma/rdma.h"
#include "tests/system/oracle.h"
#include "tests/system/run_one.h"
#include "verbs/ibv/address.h"
#include "verbs/transport.h"

namespace nzcl::test {
namespace {

using std::chrono::seconds;
using testing::Each;
using testing::HasSubstr;
using verbs::Clock;
using verbs::Completion;
using verbs::PeerId;
using verbs::ibv::EndpointAddress;

/// Returns true if the line of rdma-resource(8) is about an RC queue pair that a thread of this process has
/// made.
bool is_ours(const std::string& line) {
  const std::size_t at = line.find(" pid ");
  if (at == std::string::npos || line.find(" type RC ") == std::string::npos) return false;
  return std::filesystem::exists("/proc/self/task/" + std::to_string(std::atoi(line.c_str() + at + 5)));
}

/// The RC queue pairs of this process.
int queue_pairs() {
  const auto close = [](std::FILE* f) { ::pclose(f); };
  const std::unique_ptr<std::FILE, decltype(close)> list(::popen("rdma resource show qp", "r"), close);
  int found = 0;
  std::array<char, 1024> line;
  while (list && std::fgets(line.data(), static_cast<int>(line.size()), list.get()) != nullptr)
    found += is_ours(line.data()) ? 1 : 0;
  return found;
}

/// Some endpoints of which each knows the addresses of all others.
class FirstUse : public Rdma {
 protected:
  static constexpr PeerId kPeers = 5;
  static constexpr std::size_t kBytes = 4096;

  void SetUp() override {
    Rdma::SetUp();
    if (!IsSkipped()) open([](std::string& /*address*/) {});
  }
  /// `change` may forge the address of endpoint 1 that the others are told.
  template <typename Change>
  void open(Change change, double timeout_s = 60) {
    endpoints_.clear();
    regions_.clear();
    devices_.clear();
    verbs::DeviceOptions options;
    options.transport = "ibverbs";
    options.timeout_s = timeout_s;
    for (PeerId i = 0; i < kPeers; ++i) {
      options.local_rank = static_cast<int>(i);
      devices_.push_back(verbs::open_device(options));
      endpoints_.push_back(devices_[i]->open_endpoint({.self = i, .peers = kPeers, .arrivals = 256}));
      bytes_[i].assign(kBytes, std::byte{0});
      regions_.push_back(devices_[i]->register_memory(bytes_[i], MemoryKind::host));
    }
    for (PeerId i = 0; i < kPeers; ++i) {
      std::vector<std::string> addresses;
      for (PeerId j = 0; j < kPeers; ++j) addresses.push_back(endpoints_[j]->address_for(i));
      if (i != 1) change(addresses[1]);
      endpoints_[i]->connect(addresses, Clock::now());
    }
  }
  /// Posts a write of 8 bytes with this number as immediate and value.
  bool write(PeerId from, PeerId to, std::uint32_t number) {
    std::byte* const source = bytes_[from].data() + 8 * (1 + number % 256);
    std::memcpy(source, &number, sizeof number);
    const verbs::Segment segment{source, 8, regions_[from].get()};
    const verbs::Write write{.peer = to,
                             .segments = {&segment, 1},
                             .target = regions_[to]->remote(),
                             .immediate = number,
                             .context = number};
    return endpoints_[from]->post({&write, 1}) == 1;
  }
  void poll() {
    std::array<Completion, 32> out;
    for (PeerId i = 0; i < kPeers; ++i) {
      if (!endpoints_[i]) continue;
      const std::size_t n = endpoints_[i]->poll(out);
      for (const Completion& c : std::span(out).first(n)) {
        if (c.kind == Completion::Kind::arrived) arrived_[i].push_back(c.immediate);
        if (c.kind == Completion::Kind::failed) failed_.push_back(c.peer);
        if (c.kind == Completion::Kind::failed) failure_ = endpoints_[i]->failure();
      }
    }
  }
  template <typename Done>
  bool poll_until(Done done, seconds patience = seconds(30)) {
    const auto deadline = Clock::now() + patience;
    while (!done()) {
      if (Clock::now() > deadline) return false;
      poll();
    }
    return true;
  }
  bool quiet() {
    return std::ranges::all_of(endpoints_, [](const auto& e) { return !e || e->in_flight() == 0; });
  }

  std::array<std::vector<std::byte>, kPeers> bytes_;
  std::vector<std::shared_ptr<verbs::Device>> devices_;
  std::vector<std::unique_ptr<verbs::MemoryRegion>> regions_;
  std::vector<std::unique_ptr<verbs::Endpoint>> endpoints_;
  std::array<std::vector<std::uint32_t>, kPeers> arrived_;
  std::vector<PeerId> failed_;
  std::string failure_;
};

TEST_F(FirstUse, APairHasQueuePairsFromItsFirstWriteOn) {
  EXPECT_EQ(queue_pairs(), 0);
  ASSERT_TRUE(write(0, 1, 1));
  ASSERT_TRUE(poll_until([&] { return arrived_[1].size() == 1; })) << failure_;
  EXPECT_EQ(queue_pairs(), 2) << "one on each side";
  ASSERT_TRUE(write(1, 0, 2));
  ASSERT_TRUE(poll_until([&] { return arrived_[0].size() == 1; })) << failure_;
  EXPECT_EQ(queue_pairs(), 2) << "the way back is the same";
  ASSERT_TRUE(write(4, 2, 3));
  ASSERT_TRUE(write(2, 4, 4)) << "both call at once";
  ASSERT_TRUE(poll_until([&] { return arrived_[2].size() == 1 && arrived_[4].size() == 1; })) << failure_;
  EXPECT_EQ(queue_pairs(), 4);
  EXPECT_TRUE(poll_until([&] { return quiet(); }));
}

TEST_F(FirstUse, WhatIsPostedBeforeArrivesInItsOrder) {
  constexpr std::uint32_t kMany = 60;
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < kMany; ++i) {
    for (const PeerId to : {1, 2, 3, 4}) ASSERT_TRUE(write(0, to, i));
    expected.push_back(i);
  }
  EXPECT_EQ(endpoints_[0]->in_flight(), 4 * kMany);
  ASSERT_TRUE(poll_until([&] { return arrived_[4].size() == kMany && quiet(); })) << failure_;
  for (const PeerId to : {1, 2, 3, 4}) {
    EXPECT_EQ(arrived_[to], expected);
    EXPECT_EQ(std::to_integer<unsigned>(bytes_[to][0]), kMany - 1) << "the last write landed last";
  }
  EXPECT_EQ(queue_pairs(), 8);
}

TEST_F(FirstUse, APeerThatHasGoneIsNamedInTime) {
  open([](std::string& /*address*/) {}, 2);
  endpoints_[3].reset();
  for (std::uint32_t i = 0; i < 100; ++i) ASSERT_TRUE(write(0, 3, i));
  ASSERT_TRUE(write(0, 2, 7));
  ASSERT_TRUE(poll_until([&] { return arrived_[2].size() == 1; })) << "the others are not held up";
  ASSERT_TRUE(poll_until([&] { return !failed_.empty(); }, seconds(10)));
  EXPECT_EQ(failed_, std::vector<PeerId>{3});
  EXPECT_THAT(failure_, HasSubstr("peer 3 has not answered a call for 1 s"));
  EXPECT_EQ(endpoints_[0]->in_flight(), 0u);
  EXPECT_TRUE(write(0, 3, 8)) << "it is dropped, as with every peer that has failed";
  EXPECT_EQ(endpoints_[0]->in_flight(), 0u);
}

TEST_F(FirstUse, AWrongTokenIsNotAnswered) {
  open(
      [](std::string& address) {
        EndpointAddress forged = EndpointAddress::decode(address);
        forged.token ^= 1;
        address = forged.encode();
      },
      2);
  ASSERT_TRUE(write(0, 1, 1));
  ASSERT_TRUE(poll_until([&] { return !failed_.empty(); }, seconds(10)));
  EXPECT_THAT(failure_, HasSubstr("peer 1 has not answered"));
  EXPECT_EQ(queue_pairs(), 1) << "endpoint 1 has made none";
  EXPECT_TRUE(arrived_[1].empty());
}

/// In the rounds of doubling a rank writes to those that come 1, 2, 4 and 8 after it, and is written to by
/// those that come as far before it, of which one is the same.
TEST_F(Rdma, RanksThatDoubleHaveQueuePairsToTheirPartnersOnly) {
  constexpr int kRanks = 16, kPartners = 7;
  Setting s = setting(kRanks);
  s.options.algorithm = Algorithm::doubling;
  Problem p{.count = 16, .block = 16, .ranks = kRanks};
  const Expected expected = make_expected(p);
  std::barrier<> all(kRanks);
  EXPECT_THAT(run_ranks(s,
                        [&](Communicator& c) {
                          all.arrive_and_wait();
                          if (c.rank() == 0) {
                            EXPECT_EQ(queue_pairs(), 0);
                          }
                          all.arrive_and_wait();
                          run_one(c, p, expected, Form::in_place);
                          all.arrive_and_wait();
                          if (c.rank() == 0) {
                            EXPECT_EQ(queue_pairs(), kRanks * kPartners);
                          }
                          all.arrive_and_wait();
                        }),
              Each(""));
}

}  // namespace
}  // namespace nzcl::test
