// An endpoint over two others: which one a write goes to, and what it makes of their completions.
#include "verbs/mixed/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "verbs/loopback/network.h"
#include "verbs/mixed/device.h"

namespace nzcl::verbs::mixed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = Completion::Kind;

/// An endpoint that notes what it is given, and gives back what a test has put into it.
class Scripted final : public Endpoint {
 public:
  std::string address_for(PeerId peer) override { return std::to_string(peer); }
  void connect(std::span<const std::string> addresses, Deadline) override {
    connected.assign(addresses.begin(), addresses.end());
  }
  std::size_t post(std::span<const Write> writes) noexcept override {
    std::size_t n = 0;
    for (; n < writes.size() && room > 0; ++n, --room) posted.push_back(writes[n].context);
    return n;
  }
  std::size_t poll(std::span<Completion> out) noexcept override {
    std::size_t n = 0;
    for (; n < out.size() && !completions.empty(); ++n) {
      out[n] = completions.front();
      completions.erase(completions.begin());
    }
    return n;
  }
  std::string failure() const override { return text; }
  std::size_t in_flight() const noexcept override { return flying; }
  int wait_fd() const noexcept override { return fd; }
  bool prepare_wait() noexcept override { return quiet; }

  std::vector<std::string> connected;
  std::vector<std::uint64_t> posted;  // contexts
  std::vector<Completion> completions;
  std::string text;
  std::size_t room = 100, flying = 0;
  int fd = -1;
  bool quiet = true;
};

/// Peers 1 and 3 are on this host, 2 and 4 are not.
struct MixedEndpointTest : testing::Test {
  MixedEndpointTest() {
    auto b = std::make_unique<Scripted>(), w = std::make_unique<Scripted>();
    between = b.get(), within = w.get();
    mixed = std::make_unique<MixedEndpoint>(
        std::move(b), std::move(w),
        std::vector{Level::within, Level::within, Level::between, Level::within, Level::between});
  }
  std::size_t post(const std::vector<PeerId>& peers) {
    std::vector<Write> writes;
    for (const PeerId peer : peers) {
      writes.push_back({.peer = peer, .segments = {}, .target = {}, .immediate = {}, .context = next++});
    }
    return mixed->post(writes);
  }
  static Completion arrival(std::uint32_t immediate) {
    return {.kind = Kind::arrived, .peer = Completion::kNoPeer, .immediate = immediate, .context = 0};
  }
  std::vector<std::uint32_t> poll(std::size_t most) {
    std::vector<Completion> out(most);
    out.resize(mixed->poll(out));
    std::vector<std::uint32_t> immediates;
    for (const Completion& c : out) immediates.push_back(c.immediate);
    return immediates;
  }

  Scripted *between, *within;
  std::unique_ptr<MixedEndpoint> mixed;
  std::uint64_t next = 0;
};

TEST_F(MixedEndpointTest, EachWriteGoesWhereItsPeerIs) {
  EXPECT_EQ(post({1, 2, 4, 3, 1, 2}), 6u);
  EXPECT_THAT(within->posted, ElementsAre(0, 3, 4));
  EXPECT_THAT(between->posted, ElementsAre(1, 2, 5));
}

TEST_F(MixedEndpointTest, WhatIsAcceptedIsAPrefix) {
  between->room = 1;
  EXPECT_EQ(post({1, 2, 4, 3}), 2u) << "the second write to the network has no room";
  EXPECT_THAT(within->posted, ElementsAre(0)) << "nor is anything behind it accepted";
  EXPECT_THAT(between->posted, ElementsAre(1));
  EXPECT_EQ(post({2}), 0u);
  EXPECT_EQ(post({3, 1}), 2u) << "the host has room";
}

TEST_F(MixedEndpointTest, EachEndpointConnectsToItsOwnPeers) {
  mixed->connect(std::array<std::string, 5>{"", "a", "b", "c", "d"}, {});
  EXPECT_THAT(within->connected, ElementsAre("", "a", "", "c", ""));
  EXPECT_THAT(between->connected, ElementsAre("", "", "b", "", "d"));
}

TEST_F(MixedEndpointTest, NeitherEndpointStarvesTheOther) {
  for (std::uint32_t i = 0; i < 8; ++i) within->completions.push_back(arrival(i));
  for (std::uint32_t i = 100; i < 108; ++i) between->completions.push_back(arrival(i));
  EXPECT_THAT(poll(4), ElementsAre(0, 1, 100, 101));
  EXPECT_THAT(poll(1), ElementsAre(102)) << "they take turns";
  EXPECT_THAT(poll(1), ElementsAre(2));
  between->completions.clear();
  EXPECT_THAT(poll(4), ElementsAre(3, 4, 5, 6)) << "one that has nothing leaves its room to the other";
  EXPECT_THAT(poll(4), ElementsAre(7));
  EXPECT_THAT(poll(4), IsEmpty());
}

TEST_F(MixedEndpointTest, AFailureHasTheTextOfItsEndpoint) {
  between->text = "the network is gone";
  within->text = "the process has ended";
  within->completions = {{.kind = Kind::failed, .peer = 3, .immediate = 0, .context = 0}};
  std::array<Completion, 4> out;
  ASSERT_EQ(mixed->poll(out), 1u);
  EXPECT_EQ(out[0].peer, 3u);
  EXPECT_EQ(mixed->failure(), "the process has ended");
  between->completions = {{.kind = Kind::failed, .peer = 2, .immediate = 0, .context = 0}};
  ASSERT_EQ(mixed->poll(out), 1u);
  EXPECT_EQ(mixed->failure(), "the network is gone");
}

TEST_F(MixedEndpointTest, ItRestsWhenBothDo) {
  between->flying = 2, within->flying = 3;
  EXPECT_EQ(mixed->in_flight(), 5u);
  EXPECT_TRUE(mixed->prepare_wait());
  between->quiet = false;
  EXPECT_FALSE(mixed->prepare_wait());
  between->quiet = true, within->quiet = false;
  EXPECT_FALSE(mixed->prepare_wait());
  EXPECT_LT(mixed->wait_fd(), 0) << "the endpoints have no descriptors";
}

TEST(MixedDevice, PeersAtOneLevelAreReachedByItsOwnEndpoint) {
  LoopbackNetwork network, host;
  LoopbackOptions readable;
  readable.limits.ordered = readable.limits.readable = true;
  MixedDevice device(network.device(), host.device(readable));
  const auto is_mixed = [&](std::vector<Level> levels) {
    const auto endpoint = device.open_endpoint({.self = 0, .peers = levels.size(), .levels = levels});
    return dynamic_cast<MixedEndpoint*>(endpoint.get()) != nullptr;
  };
  EXPECT_FALSE(is_mixed({Level::within, Level::within}));
  EXPECT_FALSE(is_mixed({Level::within, Level::between})) << "the first one is itself";
  EXPECT_TRUE(is_mixed({Level::within, Level::between, Level::within}));
  EXPECT_FALSE(is_mixed({}));
  EXPECT_FALSE(device.limits().readable) << "not by all";
  EXPECT_TRUE(device.limits_at(Level::within).readable);
}

TEST(MixedDevice, APeerIsToldWhatItsOwnDeviceNeeds) {
  LoopbackNetwork network, host;
  std::vector<std::byte> bytes(100);
  const auto within = host.device();
  const auto first = within->register_memory(bytes, MemoryKind::host);
  MixedDevice device(network.device(), within);
  const auto region = device.register_memory(bytes, MemoryKind::host);
  EXPECT_EQ(region->bytes().data(), bytes.data());
  EXPECT_NE(region->remote_at(Level::within).key, region->remote_at(Level::between).key);
  EXPECT_EQ(region->remote_at(Level::between).key, region->remote().key);
}

}  // namespace
}  // namespace nzcl::verbs::mixed
