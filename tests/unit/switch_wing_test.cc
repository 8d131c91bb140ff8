// How the switch exchange is found, what it plans, and what it refuses.
#include "runtime/switch/switch_wing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nzcl/error.h"
#include "runtime/switch/registration.h"

namespace nzcl::engine {
namespace {

using slot_pool::port_options;
using ::testing::HasSubstr;

/// Three ranks and an aggregator on one host. `networks` has a letter for each member: equal letters are one
/// network.
Membership members_in(const std::string& networks) {
  std::vector<std::string> hosts, names;
  for (const char network : networks) hosts.emplace_back("host"), names.emplace_back(1, network);
  Membership membership;
  membership.members = {.self = 0, .workers = 3, .dedicated = 1};
  membership.hosts = membership.process_spaces = membership.cores = Groups::by_name(hosts);
  membership.networks = Groups::by_name(names);
  membership.nodes.assign(hosts.size(), 1);
  return membership;
}

TEST(SwitchWing, OnlyItsAlgorithmFindsIt) {
  EXPECT_NE(wing_of(Algorithm::switch_), nullptr);
  for (const Algorithm other :
       {Algorithm::automatic, Algorithm::push, Algorithm::doubling, Algorithm::merging})
    EXPECT_EQ(wing_of(other), nullptr);
}

/// Containers of one host can share memory, but each may have a loopback interface of its own.
TEST(SwitchWing, PortsUseTheLoopbackInterfaceOnlyWithinOneNetwork) {
  EXPECT_TRUE(port_options({}, members_in("aaaa")).one_host);
  EXPECT_FALSE(port_options({}, members_in("aaab")).one_host);
}

TEST(SwitchWing, PortsAreThoseOfTheTransport) {
  Options options;
  options.gid_index = 3;
  EXPECT_EQ(port_options(options, members_in("aaaa")).kind, verbs::DatagramKind::udp);
  options.transport = "ibverbs";
  EXPECT_EQ(port_options(options, members_in("aaaa")).kind, verbs::DatagramKind::ud);
  EXPECT_EQ(port_options(options, members_in("aaaa")).device.gid_index, 3);
  EXPECT_EQ(port_options(options, members_in("aaaa")).device.numa_node, 1);
}

TEST(SwitchWing, RanksAloneAreRefused) {
  const auto wing = wing_of(Algorithm::switch_);
  EXPECT_NO_THROW(wing->check({.self = 0, .workers = 2, .dedicated = 1}));
  try {
    wing->check({.self = 0, .workers = 2, .dedicated = 0});
    FAIL() << "no aggregator sums";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(e.what(), HasSubstr("start nzcl_aggregator --switch"));
  }
}

TEST(SwitchWing, WhatItCannotSumIsNamed) {
  wire::OperationRecord record;
  record.type = static_cast<std::uint8_t>(DataType::float32);
  record.op = static_cast<std::uint8_t>(ReduceOp::sum);
  EXPECT_FALSE(wing_of(Algorithm::switch_)->why_not(record));
  record.op = static_cast<std::uint8_t>(ReduceOp::max);
  EXPECT_THAT(wing_of(Algorithm::switch_)->why_not(record).value_or(""), HasSubstr("this is max of float32"));
}

}  // namespace
}  // namespace nzcl::engine
