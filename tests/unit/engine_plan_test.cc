// What the engines' configuration comes to, by options, members and what the transport grants.
#include "runtime/plan/engine_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "nzcl/error.h"

namespace nzcl::engine {
namespace {

using wire::Priority;

/// `hosts` has a letter for each member: equal letters are one host, and one network.
Membership members_on(const std::string& hosts, int dedicated = 0) {
  std::vector<std::string> names;
  for (const char host : hosts) names.emplace_back(1, host);
  Membership membership;
  membership.members.dedicated = dedicated;
  membership.members.workers = static_cast<int>(hosts.size()) - dedicated;
  membership.hosts = membership.networks = membership.process_spaces = Groups::by_name(names);
  membership.lanes = 2;
  membership.cache_bytes = 2 << 20;
  membership.nodes.assign(hosts.size(), 1);
  return membership;
}

EngineConfig plan(const Membership& membership, const verbs::Limits& limits = {},
                  const Options& options = {}) {
  return plan_engine(options, membership, limits);
}

TEST(EnginePlan, TakesOverWhoTheMembersAre) {
  const EngineConfig config = plan(members_on("aaab", 1));
  EXPECT_EQ(config.members.workers, 3);
  EXPECT_EQ(config.members.dedicated, 1);
  EXPECT_EQ(config.lanes, 2);
  EXPECT_EQ(config.node(3), 1);
  EXPECT_EQ(config.links.size(), 4u);
  EXPECT_EQ(config.lending_groups.size(), 4u);
}

TEST(EnginePlan, FewRanksTakeOneHopAndItsChannelsHaveMoreSlots) {
  const EngineConfig two = plan(members_on("aa")), five = plan(members_on("aaaaa"));
  EXPECT_TRUE(two.one_hop);
  EXPECT_FALSE(five.one_hop) << "more ranks would send many more messages";
  EXPECT_EQ(five.channel(Priority::express).slots, kLeastSlots);
  EXPECT_EQ(two.channel(Priority::express).slots, kLeastSlots * kOneHopSlots);
  EXPECT_EQ(two.channel(Priority::bulk).slots, kLeastSlots) << "only express operations take one hop";
}

TEST(EnginePlan, AWindowForEachOfManyOwnersIsSmall) {
  EXPECT_EQ(plan(members_on(std::string(64, 'a'))).worker_window, kWorkerWindow);
  EXPECT_EQ(plan(members_on(std::string(65, 'a'))).worker_window, kWorkerWindowOfMany);
  EXPECT_EQ(plan(members_on(std::string(204, 'a'), 4)).worker_window, kWorkerWindow) << "four owners";
}

TEST(EnginePlan, MergingHasChannelsBetweenRanksAlone) {
  EXPECT_EQ(plan(members_on("aab")).channel(Priority::merging).slots, kMergingSlots);
  EXPECT_EQ(plan(members_on("aab")).channel(Priority::merging).slot_bytes, kBulkSlotBytes);
  EXPECT_FALSE(plan(members_on("a")).has_merging()) << "nobody to merge with";
  EXPECT_FALSE(plan(members_on("aab", 1)).has_merging()) << "dedicated aggregators";
}

TEST(EnginePlan, DoublingHasChannelsWhereItsBatchesFit) {
  const EngineConfig three = plan(members_on("aaa"));
  EXPECT_TRUE(three.has_doubling());
  EXPECT_EQ(three.channel(Priority::doubling).slots, kDoublingSlots);
  EXPECT_EQ(doubling_bytes(three), doubling_bytes(2, kDoublingSlotBytes)) << "one contribution in a batch";
  EXPECT_LT(doubling_bytes(plan(members_on("aaaa"))), doubling_bytes(three)) << "two";
  EXPECT_FALSE(plan(members_on("a")).has_doubling()) << "nobody to exchange with";
  EXPECT_FALSE(plan(members_on("aab", 1)).has_doubling()) << "dedicated aggregators";
  EXPECT_TRUE(plan(members_on(std::string(64, 'a'))).has_doubling());
  EXPECT_GE(doubling_bytes(8, kDoublingSlotBytes), 8192u + 256u) << "8 KiB of floats with a bitmap";
}

// Doubling and merging have few partners, so their slots do not have to follow the number of ranks.
TEST(EnginePlan, AmongManyRanksAFewElementsAreStillDoubled) {
  for (const std::size_t ranks : {65, 200, 1024, 4096}) {
    SCOPED_TRACE(ranks);
    const EngineConfig config = plan(members_on(std::string(ranks, 'a')));
    EXPECT_TRUE(config.has_doubling());
    EXPECT_GE(doubling_bytes(config), 32u + 8u) << "8 floats with a bitmap";
    EXPECT_EQ(config.channel(Priority::merging).slot_bytes, kMergingSlotBytesOfMany);
    const auto slots = [&](Priority p) {
      return std::uint64_t{config.channel(p).slots} * config.channel(p).stride();
    };
    EXPECT_LE(12 * (slots(Priority::doubling) + slots(Priority::merging)), 16u << 20)
        << "log2 N rings of each";
  }
  Options options;
  options.tune.slot_bytes = 8 << 10;
  const EngineConfig config = plan(members_on(std::string(200, 'a')), {}, options);
  EXPECT_EQ(config.channel(Priority::merging).slot_bytes, 8u << 10) << "as the user wants";
  EXPECT_LE(config.channel(Priority::doubling).slot_bytes, 8u << 10);
}

TEST(EnginePlan, ABatchOfManyHasRoomForTwoReasons) {
  for (const int ranks : {128, 200, 512, 1024, 4096}) {
    const std::uint64_t slot = doubling_slot_bytes_of_many(ranks), bytes = doubling_bytes(ranks, slot);
    ASSERT_GT(bytes, 0u) << ranks;
    if (bytes >= kLeastDoublingBytes) continue;  // every contribution has room for its own
    const std::uint64_t all = most_entries(ranks) * wire::entry_bytes(0, bytes);
    EXPECT_LE(doubling_overhead(ranks) + all + 2 * wire::kMostRefusalText, slot) << ranks;
  }
  EXPECT_EQ(doubling_bytes(4096, kDoublingSlotBytes), 0u) << "no room for an element and its bitmap";
}

// What is under way to a lane by doubling and merging comes from log2 N partners, and not from all.
TEST(EnginePlan, ArrivalsFollowThePartners) {
  const EngineConfig config = plan(members_on(std::string(1024, 'a')));
  EngineConfig without = config;
  without.channels[static_cast<std::size_t>(Priority::doubling)].slots = 0;
  without.channels[static_cast<std::size_t>(Priority::merging)].slots = 0;
  EXPECT_EQ(immediates_bound(config) - immediates_bound(without),
            2u * 10 * (kDoublingSlotsOfMany + kMergingSlotsOfMany));
}

TEST(EnginePlan, AnAlgorithmThatCannotBeIsRefused) {
  Options options;
  options.algorithm = Algorithm::push;
  EXPECT_FALSE(plan(members_on("aa"), {}, options).one_hop);
  options.algorithm = Algorithm::merging;
  EXPECT_EQ(plan(members_on("aaa"), {}, options).algorithm, Algorithm::merging);
  options.algorithm = Algorithm::doubling;
  EXPECT_EQ(plan(members_on("aaa"), {}, options).algorithm, Algorithm::doubling);
  EXPECT_THROW(plan(members_on("aab", 1), {}, options), Error);
  options.algorithm = Algorithm::switch_;
  const EngineConfig config = plan(members_on("aab", 1), {}, options);
  EXPECT_EQ(config.tile_block_bytes, 0u);
  EXPECT_FALSE(config.one_hop);
  EXPECT_FALSE(config.has_doubling());
}

TEST(EnginePlan, DedicatedAggregatorsNeedTwoHops) { EXPECT_FALSE(plan(members_on("aab", 1)).one_hop); }

TEST(EnginePlan, SlotsCoverLinksBetweenHosts) {
  EXPECT_EQ(plan(members_on("aaaa")).channel(Priority::bulk).slots, kLeastSlots);
  EXPECT_EQ(plan(members_on("aabb")).channel(Priority::bulk).slots, kMostSlots);
  EXPECT_EQ(plan(members_on("aabb", 2)).channel(Priority::bulk).slots, kMostDedicatedSlots);
  EXPECT_EQ(plan(members_on("aabb", 2)).channel(Priority::bulk).slot_bytes, kDedicatedSlotBytes);
}

TEST(EnginePlan, SlotsAreWhatTheUserWants) {
  Options options;
  options.tune.channel_slots = 5;
  options.tune.slot_bytes = 1000;
  const EngineConfig config = plan(members_on("ab"), {}, options);
  EXPECT_EQ(config.channel(Priority::bulk).slots, 5u);
  EXPECT_EQ(config.channel(Priority::express).slots, 5u * kOneHopSlots);
  EXPECT_EQ(config.channel(Priority::bulk).slot_bytes, 960u) << "a multiple of 64";
  EXPECT_EQ(config.channel(Priority::express).slot_bytes, 960u) << "never larger than bulk slots";
}

TEST(EnginePlan, ASlotIsNotLargerThanAWriteMayBe) {
  const EngineConfig config = plan(members_on("aaa"), {.max_write_bytes = 10000, .costs = {}});
  EXPECT_EQ(config.channel(Priority::bulk).slot_bytes, 9920u) << "with its seal";
  EXPECT_EQ(config.channel(Priority::express).slot_bytes, kExpressSlotBytes);
}

TEST(EnginePlan, MembersLendWhatOthersCanRead) {
  const EngineConfig readable = plan(members_on("aaa"), {.ordered = true, .readable = true, .costs = {}});
  const EngineConfig unreadable = plan(members_on("aaa"), {.ordered = true, .costs = {}});
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      EXPECT_TRUE(readable.lends(Priority::bulk, a, b));
      EXPECT_FALSE(readable.lends(Priority::express, a, b)) << "small messages are copied";
      EXPECT_FALSE(unreadable.lends(Priority::bulk, a, b));
    }
  }
}

TEST(EnginePlan, NobodyLendsMoreBuffersThanAnAnnouncementNumbers) {
  Options options;
  options.tune.channel_slots = 32768;
  EXPECT_FALSE(plan(members_on("aa"), {.ordered = true, .readable = true, .costs = {}}, options)
                   .lends(Priority::bulk, 0, 1));
  options.tune.channel_slots = 8192;
  EXPECT_TRUE(plan(members_on("aa"), {.ordered = true, .readable = true, .costs = {}}, options)
                  .lends(Priority::bulk, 0, 1));
}

TEST(EnginePlan, LinksAreAsTheDeviceIs) {
  const EngineConfig ordered = plan(members_on("aab"), {.ordered = true, .costs = {.segment = 799.5}});
  EXPECT_TRUE(ordered.all_ordered());
  EXPECT_EQ(ordered.link(2).gather_bytes, 800u);
  EXPECT_FALSE(plan(members_on("aab"), {.ordered = false, .costs = {}}).all_ordered());
}

/// A device whose members within a host read each other's memory, and which has other limits between hosts.
DeviceLimits mixed_limits() {
  DeviceLimits limits;
  limits.is_mixed = true;
  limits.within = {.max_segments = 16,
                   .ordered = true,
                   .readable = true,
                   .costs = {.segment = 100, .write = 1000, .foreign_byte = 0.5}};
  limits.between = {.max_segments = 4,
                    .max_write_bytes = 1 << 16,
                    .ordered = false,
                    .costs = {.segment = 8000, .write = 30000}};
  limits.both = {.max_segments = 4, .max_write_bytes = 1 << 16, .ordered = false, .costs = {}};
  return limits;
}

TEST(EnginePlan, OfAMixedDeviceEachLinkIsAsItsLevelIs) {
  using verbs::Level;
  const EngineConfig config = plan_engine({}, members_on("abab"), mixed_limits());
  for (const int here : {0, 2}) {
    EXPECT_EQ(config.link(here).level, Level::within);
    EXPECT_TRUE(config.link(here).ordered);
    EXPECT_EQ(config.link(here).gather_bytes, 100u);
  }
  for (const int there : {1, 3}) {
    EXPECT_EQ(config.link(there).level, Level::between);
    EXPECT_FALSE(config.link(there).ordered);
    EXPECT_EQ(config.link(there).gather_bytes, 8000u);
  }
  EXPECT_TRUE(config.is_mixed());
  EXPECT_TRUE(config.lends(Priority::bulk, 0, 2));
  EXPECT_TRUE(config.lends(Priority::bulk, 3, 1)) << "other hosts' memory is laid out alike by all";
  EXPECT_FALSE(config.lends(Priority::bulk, 0, 1));
  EXPECT_EQ(config.max_segments, 4u) << "messages suit both";
  EXPECT_LT(config.channel(Priority::bulk).slot_bytes, 1u << 16);
  // Three receivers, of whom one takes 1000 and half a byte for each, and two take 30000.
  EXPECT_EQ(config.direct_bytes, static_cast<std::uint64_t>(61000 / 3.5) + 1);
}

TEST(EnginePlan, MembersAtOneLevelOfAMixedDeviceHaveItsLimits) {
  using verbs::Level;
  const EngineConfig within = plan_engine({}, members_on("aaa"), mixed_limits());
  EXPECT_EQ(within.max_segments, 16u);
  EXPECT_EQ(within.link(1).level, Level::within);
  EXPECT_TRUE(within.lends(Priority::bulk, 0, 1));
  const EngineConfig between = plan_engine({}, members_on("abc"), mixed_limits());
  EXPECT_EQ(between.link(1).level, Level::between);
  EXPECT_FALSE(between.is_mixed());
  EXPECT_FALSE(between.lends(Priority::bulk, 0, 1));
}

TEST(EnginePlan, WorkersOfOneNetworkStayWithinTheirCache) {
  EXPECT_EQ(plan(members_on("aaa")).ahead_bytes, 2u << 20);
  EXPECT_EQ(plan(members_on("aab")).ahead_bytes, 0u) << "links have to be covered";
}

TEST(EnginePlan, GatherListsKeepToTheTransportAndToTheUser) {
  Options options;
  EXPECT_EQ(plan(members_on("aa"), {.max_segments = 1000, .costs = {}}).max_segments, verbs::kMaxSegments);
  options.tune.max_segments = 3;
  EXPECT_EQ(plan(members_on("aa"), {.max_segments = 1000, .costs = {}}, options).max_segments, 3u);
  EXPECT_EQ(plan(members_on("aa"), {.max_segments = 2, .costs = {}}, options).max_segments, 2u);
}

TEST(EngineConfig, OnlyMembersOfOneGroupLend) {
  EngineConfig config;
  config.members.workers = 5;
  config.channels[0].lent = true;
  config.set_links({});
  config.lending_groups = {0, 0, 1, 1, -1};
  EXPECT_TRUE(config.lends(Priority::bulk, 0, 1));
  EXPECT_TRUE(config.lends(Priority::bulk, 3, 2));
  EXPECT_FALSE(config.lends(Priority::bulk, 1, 2));
  EXPECT_FALSE(config.lends(Priority::bulk, 4, 4)) << "a member of no group lends to nobody";
  EXPECT_FALSE(config.lends(Priority::express, 0, 1)) << "the channels of this priority are not lent";
}

TEST(EngineConfig, OneUnorderedLinkIsEnoughForAnnouncements) {
  EngineConfig config;
  config.members.workers = 3;
  config.channels = {ChannelConfig{4096, 8}, ChannelConfig{1024, 8}};
  config.set_links({.ordered = true});
  const std::uint64_t quiet = immediates_bound(config);
  config.links[2].ordered = false;
  EXPECT_FALSE(config.all_ordered());
  EXPECT_GT(immediates_bound(config), quiet) << "direct writes of member 2 are announced";
}

}  // namespace
}  // namespace nzcl::engine
