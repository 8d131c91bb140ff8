// Which transports suit the members, by what they say of themselves.
#include "runtime/plan/transport_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nzcl::engine {
namespace {

using testing::ElementsAre;

Membership members_on(const std::vector<std::string>& hosts, const std::vector<std::string>& spaces) {
  Membership m;
  m.members.workers = static_cast<int>(hosts.size());
  m.hosts = m.networks = m.cores = Groups::by_name(hosts);
  m.process_spaces = Groups::by_name(spaces);
  return m;
}

TEST(TransportChoice, WithinAHostTheFasterWaysComeFirstAndTcpIsTheLast) {
  EXPECT_THAT(transports_of({}, members_on({"a", "a"}, {"s", "s"})), ElementsAre("cma", "shm", "tcp"));
  EXPECT_THAT(transports_of({}, members_on({"a", "a"}, {"", ""})), ElementsAre("shm", "tcp"));
  EXPECT_THAT(transports_of({}, members_on({"a", "a"}, {"s", "t"})), ElementsAre("shm", "tcp"));
  EXPECT_THAT(transports_of({}, members_on({"a", "a"}, {"s", ""})), ElementsAre("shm", "tcp"))
      << "shm needs nobody to be allowed to write another's memory";
}

TEST(TransportChoice, BetweenHostsItIsTcp) {
  EXPECT_THAT(transports_of({}, members_on({"a", "b"}, {"s", "t"})), ElementsAre("tcp"));
}

TEST(TransportChoice, WhereSomeShareAHostEachPairHasItsOwn) {
  EXPECT_THAT(transports_of({}, members_on({"a", "a", "b"}, {"s", "s", "t"})),
              ElementsAre("cma,tcp", "shm,tcp", "tcp"));
  EXPECT_THAT(transports_of({}, members_on({"a", "b", "a", "b"}, {"s", "t", "s", "t"})),
              ElementsAre("cma,tcp", "shm,tcp", "tcp"));
  EXPECT_THAT(transports_of({}, members_on({"a", "a", "b"}, {"s", "u", "t"})), ElementsAre("shm,tcp", "tcp"));
  EXPECT_THAT(transports_of({}, members_on({"a", "a", "b", "b"}, {"s", "s", "t", ""})),
              ElementsAre("shm,tcp", "tcp"))
      << "cma would fail on host b, and all hosts use the same";
}

TEST(TransportChoice, APairIsReducedToWhatTheMembersNeed) {
  Options options;
  options.transport = "cma,ibverbs";
  EXPECT_THAT(transports_of(options, members_on({"a", "a", "b"}, {"s", "s", "t"})),
              ElementsAre("cma,ibverbs"));
  EXPECT_THAT(transports_of(options, members_on({"a", "a"}, {"s", "s"})), ElementsAre("cma"));
  EXPECT_THAT(transports_of(options, members_on({"a", "b"}, {"s", "t"})), ElementsAre("ibverbs"));
  options.transport = "auto,ibverbs";
  EXPECT_THAT(transports_of(options, members_on({"a", "a", "b"}, {"s", "s", "t"})),
              ElementsAre("cma,ibverbs", "shm,ibverbs", "ibverbs"));
}

TEST(TransportChoice, WhatTheOptionNamesIsTheOnlyOne) {
  Options options;
  options.transport = "shm";
  EXPECT_THAT(transports_of(options, members_on({"a", "b"}, {"s", "t"})), ElementsAre("shm"));
  EXPECT_EQ(transport_of(options, members_on({"a", "b"}, {"s", "t"})), "shm");
}

}  // namespace
}  // namespace nzcl::engine
