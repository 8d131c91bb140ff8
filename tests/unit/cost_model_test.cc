#include "runtime/plan/cost_model.h"

#include <gtest/gtest.h>

#include "runtime/plan/engine_config.h"
#include "verbs/cma/costs.h"

namespace nzcl::engine {
namespace {

constexpr auto kNever = kNeverDirect;

TEST(CostModel, AnEntryIsWorthTheCopyThatItSaves) {
  EXPECT_EQ(gather_from({.segment = 799.5}), 800u);
  EXPECT_EQ(gather_from({}), 0u) << "entries that cost nothing always pay";
}

TEST(CostModel, AWriteIsWorthTheCopiesThatItSaves) {
  const verbs::Costs costs{.write = 8000};
  EXPECT_EQ(direct_from(costs, 2), 4000u) << "1 write, 2 copies";
  EXPECT_EQ(direct_from(costs, 4), 6000u) << "3 writes, 4 copies";
  EXPECT_EQ(direct_from(costs, 1), 0u) << "nobody to write to";
  EXPECT_EQ(direct_from({}, 8), 0u);
}

TEST(CostModel, WritesThatMoveBytesThemselvesMayNeverPay) {
  verbs::Costs costs{.write = 8000, .foreign_byte = 1};
  EXPECT_EQ(direct_from(costs, 2), 8000u);
  EXPECT_EQ(direct_from(costs, 8), 56000u) << "one copy is saved, whatever the number of ranks";
  costs.foreign_byte = 1.5;
  EXPECT_EQ(direct_from(costs, 2), 16000u);
  EXPECT_EQ(direct_from(costs, 3), kNever);
  EXPECT_EQ(direct_from(costs, 4), kNever);
  EXPECT_EQ(direct_from(costs, 1), 0u) << "nobody to write to";
}

TEST(CostModel, WhereNoLinksAreToBeCoveredWorkersStayWithinTheirCache) {
  EXPECT_EQ(ahead_bytes(true, 2 << 20), 2u << 20);
  EXPECT_EQ(ahead_bytes(false, 2 << 20), 0u) << "no bound";
  EXPECT_EQ(ahead_bytes(true, 0), 0u) << "no bound where the cache is not known";
}

TEST(CostModel, MessagesAreLargeWithinAHostAndSmallToDedicatedAggregatorsBehindLinks) {
  const auto slot = [](int dedicated, bool one_network) {
    return bulk_slot_bytes({.self = 0, .workers = 4, .dedicated = dedicated}, one_network);
  };
  EXPECT_EQ(slot(0, true), 272u << 10);
  EXPECT_EQ(slot(0, false), 136u << 10);
  EXPECT_EQ(slot(4, true), 272u << 10);
  EXPECT_EQ(slot(4, false), 68u << 10);
}

TEST(CostModel, SlotsOfManyMembersOfAHostFitTheirMemory) {
  const auto slot = [](int workers, int dedicated) {
    return bulk_slot_bytes({.self = 0, .workers = workers, .dedicated = dedicated}, true);
  };
  EXPECT_EQ(slot(1, 0), 272u << 10);
  EXPECT_EQ(slot(31, 0), 272u << 10) << "60 rings of 8 slots";
  EXPECT_EQ(slot(32, 0), 136u << 10) << "62 rings";
  EXPECT_EQ(slot(60, 8), 272u << 10) << "an aggregator has a ring of every worker";
  EXPECT_EQ(slot(61, 8), 136u << 10);
}

TEST(CostModel, SlotsAcrossHostsFitTheirMemory) {
  constexpr std::uint64_t kSlot = 136 << 10;
  const auto slots = [](int workers, int dedicated) {
    return bulk_slots({.self = 0, .workers = workers, .dedicated = dedicated}, false, kSlot);
  };
  EXPECT_EQ(bulk_slots({.self = 0, .workers = 8, .dedicated = 0}, true, kSlot), 8u) << "no links";
  EXPECT_EQ(slots(1, 0), 32u);
  EXPECT_EQ(slots(8, 0), 32u);
  EXPECT_EQ(slots(32, 0), 15u) << "62 rings";
  EXPECT_EQ(slots(64, 0), 8u) << "never fewer where members are not many";
  EXPECT_EQ(slots(65, 0), 4u) << "many members";
  EXPECT_EQ(slots(1000, 0), 2u) << "never fewer, whatever they take";
  EXPECT_EQ(slots(16, 4), 16u) << "dedicated: links are full one way";
  EXPECT_EQ(slots(100, 4), 9u) << "an aggregator has a ring of every worker";
  EXPECT_EQ(slots(2, 100), 9u) << "a worker one of every aggregator";
}

TEST(CostModel, RingsOfManyMembersStayWithinTheirMemory) {
  for (const bool one_network : {false, true}) {
    for (const int workers : {65, 100, 128, 200, 256, 500, 1000, 1024, 2048, 4096}) {
      const Members members{.self = 0, .workers = workers, .dedicated = 0};
      const std::uint64_t rings = 2 * (static_cast<std::uint64_t>(workers) - 1);
      const std::uint64_t bulk = bulk_slot_bytes(members, one_network);
      EXPECT_GE(bulk, kLeastSlotBytes) << workers;
      EXPECT_EQ(bulk % 64, 0u) << workers;
      EXPECT_LE(rings * bulk_slots(members, one_network, bulk) * (bulk + kSlotTail), kBulkRingBytesOfMany)
          << workers;
      const std::uint64_t express = express_slot_bytes(members);
      EXPECT_GE(express, kLeastSlotBytes) << workers;
      EXPECT_EQ(express % 64, 0u) << workers;
      EXPECT_LE(rings * express_slots(members, express) * (express + kSlotTail), kExpressRingBytesOfMany)
          << workers;
    }
  }
}

TEST(CostModel, UpTo64RanksNothingIsMadeSmaller) {
  for (const int workers : {2, 8, 31, 64}) {
    const Members members{.self = 0, .workers = workers, .dedicated = 0};
    EXPECT_EQ(bulk_slot_bytes(members, false), kBulkSlotBytes) << workers;
    EXPECT_GE(bulk_slots(members, false, kBulkSlotBytes), kLeastSlots) << workers;
    EXPECT_EQ(bulk_slots(members, true, kBulkSlotBytes), kLeastSlots) << workers;
    EXPECT_EQ(express_slot_bytes(members), kExpressSlotBytes) << workers;
    EXPECT_EQ(express_slots(members, kExpressSlotBytes), kLeastSlots) << workers;
  }
}

TEST(CostModel, OneHopIsForFewRanks) {
  EXPECT_TRUE(one_hop_pays(1));
  EXPECT_TRUE(one_hop_pays(2)) << "2 messages either way";
  EXPECT_TRUE(one_hop_pays(4)) << "3 messages each way at every rank, as many as at an owner";
  EXPECT_FALSE(one_hop_pays(5));
}

TEST(CostModel, ASystemCallTakesTime) { EXPECT_GT(verbs::cma::measure_costs().write, 0); }

}  // namespace
}  // namespace nzcl::engine
