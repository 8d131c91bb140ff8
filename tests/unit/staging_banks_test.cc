// Which memory nodes staging buffers lie on, and from which of them messages are composed.
#include "runtime/channel/staging_banks.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace nzcl::engine {
namespace {

using wire::Priority;

constexpr std::uint32_t kSlots = 8;

/// Every member reads the others' bulk messages in their staging buffers.
EngineConfig config_of(std::vector<int> nodes, int self = 0, int dedicated = 0) {
  EngineConfig config;
  config.members.workers = static_cast<int>(nodes.size()) - dedicated;
  config.members.dedicated = dedicated;
  config.members.self = self;
  config.channels = {ChannelConfig{4096, kSlots, true}, ChannelConfig{1024, kSlots}};
  config.set_links({});
  config.nodes = std::move(nodes);
  return config;
}

std::vector<int> nodes_of(const std::vector<StagingBank>& banks) {
  std::vector<int> nodes;
  for (const StagingBank& bank : banks) nodes.push_back(bank.node);
  return nodes;
}

TEST(StagingBanks, MembersOfOneNodeHaveOnePart) {
  const auto banks = staging_banks(config_of({1, 1, 1}), 0, Priority::bulk);
  EXPECT_EQ(nodes_of(banks), std::vector{1});
  EXPECT_EQ(banks[0].buffers, 2 * kSlots + (kSlots + kLentDifferent) + kStagingBuffers);
  EXPECT_EQ(staging_buffers(config_of({1, 1, 1}), 0, Priority::bulk), banks[0].buffers);
}

TEST(StagingBanks, NothingKnownIsOnePart) {
  EngineConfig config = config_of({-1, -1, -1});
  const std::uint32_t buffers = staging_buffers(config, 0, Priority::bulk);
  EXPECT_EQ(nodes_of(staging_banks(config, 0, Priority::bulk)), std::vector{-1});
  config.nodes.clear();
  EXPECT_EQ(nodes_of(staging_banks(config, 0, Priority::bulk)), std::vector{-1});
  EXPECT_EQ(staging_buffers(config, 0, Priority::bulk), buffers);
}

TEST(StagingBanks, MessagesLieOnTheNodeOfTheirReader) {
  const EngineConfig config = config_of({0, 0, 1, 1}, 1);
  const auto banks = staging_banks(config, 1, Priority::bulk);
  const StagingChoice choice = staging_choice(config, Priority::bulk);
  ASSERT_EQ(choice.up.size(), 4u);
  EXPECT_EQ(banks[choice.up[0]].node, 0);
  EXPECT_EQ(banks[choice.up[2]].node, 1);
  EXPECT_EQ(banks[choice.up[3]].node, 1);
  EXPECT_EQ(banks[choice.up[2]].buffers >= 2 * kSlots, true) << "one for each slot of its channels";
  EXPECT_EQ(banks[choice.down].node, 1) << "two of three readers of its results are there";
}

TEST(StagingBanks, OfTwoRanksEachWritesToTheOthersNode) {
  for (const int self : {0, 1}) {
    const EngineConfig config = config_of({0, 1}, self);
    const auto banks = staging_banks(config, self, Priority::bulk);
    EXPECT_EQ(nodes_of(banks), std::vector{1 - self});
    EXPECT_EQ(staging_choice(config, Priority::bulk).down, 0u);
  }
}

TEST(StagingBanks, ResultsStayOnTheOwnNodeIfAsManyReadersAreThere) {
  const EngineConfig config = config_of({0, 1, 0}, 0);
  EXPECT_EQ(staging_banks(config, 0, Priority::bulk)[staging_choice(config, Priority::bulk).down].node, 0);
}

TEST(StagingBanks, WhatIsWrittenIntoRingsIsComposedOnTheOwnNode) {
  const EngineConfig config = config_of({0, 1, 1}, 0);
  EXPECT_EQ(nodes_of(staging_banks(config, 0, Priority::express)), std::vector{0});
  EngineConfig apart = config;
  apart.lending_groups = {0, 0, -1};  // member 2 is on another host
  const auto banks = staging_banks(apart, 0, Priority::bulk);
  const StagingChoice choice = staging_choice(apart, Priority::bulk);
  EXPECT_EQ(banks[choice.up[1]].node, 1);
  EXPECT_EQ(banks[choice.up[2]].node, 0);
}

TEST(StagingBanks, ADedicatedAggregatorOnlySendsResults) {
  const EngineConfig config = config_of({0, 0, 1}, 2, 1);
  const auto banks = staging_banks(config, 2, Priority::bulk);
  EXPECT_EQ(nodes_of(banks), std::vector{0});
  EXPECT_EQ(banks[0].buffers, kSlots + kLentDifferent + kStagingBuffers);
}

TEST(StagingBanks, EveryMemberComputesTheSameBuffersOfTheOthers) {
  const std::vector<int> nodes{0, 1, -1, 1, 0};
  for (int member = 0; member < 5; ++member) {
    for (int self = 0; self < 5; ++self)
      EXPECT_EQ(staging_buffers(config_of(nodes, self), member, Priority::bulk),
                staging_buffers(config_of(nodes, member), member, Priority::bulk));
  }
}

TEST(StagingPool, BuffersGoBackToTheirPart) {
  std::vector<std::byte> memory(5 * 64);
  const std::vector<std::uint32_t> banks{2, 3};
  StagingPool pool(memory.data(), 64, banks, nullptr);
  EXPECT_EQ(pool.available(0), 2u);
  EXPECT_EQ(pool.available(1), 3u);
  const auto first = pool.acquire(0), second = pool.acquire(1);
  EXPECT_EQ(first, 0u);
  EXPECT_EQ(second, 2u);
  EXPECT_EQ(pool.buffer(second), memory.data() + 2 * 64);
  EXPECT_EQ(pool.available(1), 2u);
  pool.release(second);
  EXPECT_EQ(pool.available(0), 1u);
  EXPECT_EQ(pool.available(1), 3u);
}

}  // namespace
}  // namespace nzcl::engine
