// Sums in two levels: who sums with whom, how a tensor is cut into pieces, in which order steps start, and
// when such an exchange is chosen.
#include "runtime/plan/hierarchy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "runtime/comm/communicator/ordered_steps.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Each letter is the host of a rank; a blank is a rank that shares memory with nobody.
Membership on_hosts(const std::string& hosts) {
  std::vector<std::string> names;
  for (const char host : hosts) names.push_back(host == ' ' ? "" : std::string(1, host));
  Membership m;
  m.members.workers = static_cast<int>(hosts.size());
  m.hosts = m.networks = m.process_spaces = Groups::by_name(names);
  m.cache_bytes = 2 << 20;
  m.links.assign(hosts.size(), own_link(1, 0));
  return m;
}

TEST(HierarchyPlan, HostsAndColumnsFollowTheRanks) {
  const auto plan = HierarchyPlan::of(on_hosts("abacab"), 0);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->ranks(), 6);
  EXPECT_EQ(plan->hosts(), 3);
  EXPECT_EQ(plan->columns(), 1) << "host c has one rank";
  EXPECT_EQ(plan->most_ranks(), 3);
  EXPECT_THAT(plan->ranks_of(0), ElementsAre(0, 2, 4));
  EXPECT_THAT(plan->ranks_of(1), ElementsAre(1, 5));
  EXPECT_THAT(plan->ranks_of(2), ElementsAre(3));
  EXPECT_EQ(plan->host_of(5), 1);
  EXPECT_EQ(plan->place_of(4), 2);
  EXPECT_THAT(plan->ranks_of_column(0), ElementsAre(0, 1, 3));
}

TEST(HierarchyPlan, EveryRankOfEqualHostsHasAColumn) {
  const auto plan = HierarchyPlan::of(on_hosts("aabb"), 0);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->columns(), 2);
  EXPECT_THAT(plan->ranks_of_column(1), ElementsAre(1, 3));
}

TEST(HierarchyPlan, ARankThatSharesMemoryWithNobodyIsAHost) {
  const auto plan = HierarchyPlan::of(on_hosts("a a "), 0);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->hosts(), 3);
  EXPECT_THAT(plan->ranks_of(1), ElementsAre(1));
  EXPECT_THAT(plan->ranks_of(2), ElementsAre(3));
}

TEST(HierarchyPlan, ThereIsNoneWhereItMakesNoSense) {
  EXPECT_FALSE(HierarchyPlan::of(on_hosts("aaaa"), 0));
  EXPECT_FALSE(HierarchyPlan::of(on_hosts("abcd"), 0));
  EXPECT_FALSE(HierarchyPlan::of(on_hosts("    "), 0));
  EXPECT_FALSE(HierarchyPlan::of(on_hosts("aabb"), 1));
  EXPECT_FALSE(HierarchyPlan::of(on_hosts("aabb"), 4));
  Membership dedicated = on_hosts("aabb");
  dedicated.members.workers = 3;
  dedicated.members.dedicated = 1;
  EXPECT_FALSE(HierarchyPlan::of(dedicated, 0));
}

TEST(HierarchyPlan, TheOptionMakesHostsOfRanksInARow) {
  const auto plan = HierarchyPlan::of(on_hosts("aaaaa"), 2);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->hosts(), 3);
  EXPECT_EQ(plan->columns(), 1);
  EXPECT_THAT(plan->ranks_of(1), ElementsAre(2, 3));
}

RC_GTEST_PROP(Pieces, CoverTheTensorOnceInWholeBlocks, ()) {
  const auto count = *rc::gen::inRange<std::uint64_t>(1, 20'000'000);
  const auto block = *rc::gen::element<std::uint64_t>(1, 7, 256, 5000, 30'000'000);
  const int columns = *rc::gen::inRange(1, 17);
  std::uint64_t next = 0;
  const auto pieces = cut_into_pieces(count, block, 4, columns);
  for (const Piece& piece : pieces) {
    RC_ASSERT(piece.begin == next);
    RC_ASSERT(piece.columns.size() == static_cast<std::size_t>(columns));
    for (int column = 0; column < columns; ++column) {
      const std::uint64_t begin = next, elements = piece.columns[static_cast<std::size_t>(column)];
      RC_ASSERT(piece.begin + piece.before(column) == begin);
      next += elements;
      RC_ASSERT(elements == 0 || begin % block == 0u);
      RC_ASSERT(elements == 0 || next % block == 0u || next == count);
    }
    RC_ASSERT(piece.elements() == next - piece.begin);
    RC_ASSERT(piece.elements() > 0u);
  }
  RC_ASSERT(next == count);
}

RC_GTEST_PROP(SliceLayout, OfAHierarchyIsTheMeetingAlone, ()) {
  EngineConfig config;
  config.members.workers = *rc::gen::inRange(2, 6);
  config.lanes = *rc::gen::inRange(1, 4);
  config.tile_block_bytes = 512;
  config.channels.fill({.slot_bytes = 16384, .slots = 8});
  wire::OperationRecord record;
  record.count = *rc::gen::inRange<std::uint64_t>(1, 1'000'000'000);
  record.block_elems = *rc::gen::inRange<std::uint64_t>(1, 600);
  record.algorithm = wire::Algorithm::hierarchy;
  const auto epoch = *rc::gen::arbitrary<std::uint64_t>();
  const SliceLayout layout = layout_of(config, epoch, record);
  RC_ASSERT(layout.slices() == 1u);
  RC_ASSERT(layout.is_meeting(0));
  RC_ASSERT(layout.blocks() == (record.count + record.block_elems - 1) / record.block_elems);
  RC_ASSERT(layout.blocks_of(0) == 0u);
  RC_ASSERT(!layout.tiled());
  std::uint64_t owners = 0;
  for (std::uint32_t owner = 0; owner < config.owners(); ++owner) {
    owners += layout.owned(owner);
    if (layout.owned(owner) == 0) continue;
    RC_ASSERT(layout.owner(0) == owner);
    RC_ASSERT(layout.owned_slice(owner, 0) == 0u);
    RC_ASSERT(layout.on_lane(owner % static_cast<std::uint32_t>(config.lanes),
                             static_cast<std::uint32_t>(config.lanes)));
  }
  RC_ASSERT(owners == 1u);
  // Ranks that disagree about an operation meet where its slice 0 is.
  record.algorithm = wire::Algorithm::push;
  RC_ASSERT(layout.owner(0) == layout_of(config, epoch, record).owner(0));
}

TEST(OrderedSteps, StartInTheirOrderWhateverIsReadyFirst) {
  comm::OrderedSteps steps;
  std::vector<int> began;
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(steps.add(), i);
  steps.ready(0, [&] { began.push_back(0); });
  EXPECT_TRUE(began.empty()) << "not before it is open";
  steps.open();
  steps.ready(2, [&] { began.push_back(2); });
  steps.ready(3, [&] { began.push_back(3); });
  EXPECT_THAT(began, ElementsAre(0));
  steps.ready(1, [&] {
    began.push_back(1);
    steps.ready(steps.add(), [&] { began.push_back(4); });  // not inside this step
    EXPECT_THAT(began, ElementsAre(0, 1));
  });
  EXPECT_THAT(began, ElementsAre(0, 1, 2, 3, 4));
}

TEST(OrderedSteps, AreRunOnceByManyThreads) {
  constexpr std::uint64_t kSteps = 20000;
  comm::OrderedSteps steps;
  steps.open();
  for (std::uint64_t i = 0; i < kSteps; ++i) steps.add();
  std::vector<std::uint64_t> began;  // written by one step at a time
  std::atomic<std::uint64_t> next{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::uint64_t i = next++; i < kSteps; i = next++) steps.ready(i, [&, i] { began.push_back(i); });
      });
    }
  }
  ASSERT_EQ(began.size(), kSteps);
  for (std::uint64_t i = 0; i < kSteps; ++i) ASSERT_EQ(began[i], i);
}

EngineConfig config_of(const std::string& hosts, SumOrder order) {
  Options options;
  options.transport = "cma,tcp";
  options.sum_order = order;
  return plan_engine(options, on_hosts(hosts), {});
}

wire::OperationRecord large(DataType type = DataType::float32, ReduceOp op = ReduceOp::sum) {
  wire::OperationRecord record;
  record.count = 16 << 20;
  record.block_elems = 256;
  record.type = static_cast<std::uint8_t>(type);
  record.op = static_cast<std::uint8_t>(op);
  return record;
}

TEST(HierarchyChoice, IsForLargeTensorsOfHostsWithSeveralRanksWhereTheOrderMayChange) {
  const auto choice = [](const EngineConfig& config, const wire::OperationRecord& record) {
    return choose_algorithm(config, record, Algorithm::automatic);
  };
  const EngineConfig any = config_of("aabb", SumOrder::any), in_order = config_of("aabb", SumOrder::rank);
  EXPECT_EQ(choice(any, large()), wire::Algorithm::hierarchy);
  EXPECT_NE(choice(in_order, large()), wire::Algorithm::hierarchy);
  EXPECT_EQ(choice(in_order, large(DataType::int32)), wire::Algorithm::hierarchy);
  EXPECT_EQ(choice(in_order, large(DataType::float32, ReduceOp::max)), wire::Algorithm::hierarchy);
  EXPECT_NE(choice(any, large(DataType::uint8, ReduceOp::avg)), wire::Algorithm::hierarchy);
  EXPECT_NE(choice(config_of("aaaa", SumOrder::any), large()), wire::Algorithm::hierarchy);
  EXPECT_NE(choice(config_of("abcd", SumOrder::any), large()), wire::Algorithm::hierarchy);
  wire::OperationRecord little = large(), packed = large(DataType::float32, ReduceOp::max), coded = large();
  little.count = 100;
  packed.packed_result = 1;
  coded.value_rule = wire::ValueRule::coded;
  for (const auto& record : {little, packed, coded})
    EXPECT_NE(choice(any, record), wire::Algorithm::hierarchy);
}

TEST(HierarchyChoice, TheLinkOfAHostIsSharedByItsRanks) {
  const EngineConfig alone = config_of("abcd", SumOrder::any), shared = config_of("aabb", SumOrder::any);
  // Of what each of two ranks sends to the three others, two thirds leave the host.
  EXPECT_NEAR(shared.link_costs.wire_byte, alone.link_costs.wire_byte * 2 * 2 / 3, 1e-15);
  EXPECT_EQ(shared.hierarchy.between.wire_byte, alone.link_costs.wire_byte);
}

TEST(HierarchyChoice, WhatCannotBeSaysWhy) {
  const auto why = [](const EngineConfig& config, const wire::OperationRecord& record) -> std::string {
    try {
      choose_algorithm(config, record, Algorithm::hierarchy);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const EngineConfig config = config_of("aabb", SumOrder::rank);
  EXPECT_EQ(why(config, large()), "");
  EXPECT_THAT(why(config_of("abcd", SumOrder::any), large()), HasSubstr("for several hosts of which some"));
  EXPECT_THAT(why(config, large(DataType::uint8, ReduceOp::avg)), HasSubstr("averages of uint8"));
  wire::OperationRecord record = large(DataType::float32, ReduceOp::max);
  record.packed_result = 1;
  EXPECT_THAT(why(config, record), HasSubstr("sums and averages where the result is packed"));
  record = large();
  record.value_rule = wire::ValueRule::float16;
  EXPECT_THAT(why(config, record), HasSubstr("another type"));
  record = large();
  record.collective = wire::Collective::reduce;
  EXPECT_THAT(why(config, record), HasSubstr("for allreduce"));
}

SliceLayout slices_of_a_mebibyte(std::uint64_t count) {
  return SliceLayout({.count = count, .owners = 2, .slice_bytes = 1 << 20, .slot_bytes = 1 << 17});
}

TEST(OperationEnd, AnOperationOfWhichAPartWasRefusedEndsWithItsCommunicator) {
  wire::OperationRecord record;
  record.count = 1 << 20;
  const SliceLayout layout = slices_of_a_mebibyte(record.count);
  ASSERT_GT(layout.slices(), 1u);
  Operation op(layout, record, {}, {}, 1);
  op.set_no_input();
  op.slice_refused(0, wire::Refusal(1, static_cast<std::uint16_t>(ErrorCode::invalid_argument), "no"));
  op.slice_done(0);
  EXPECT_FALSE(op.finished());
  op.fail({ErrorCode::peer_failed, "rank 1 died"});
  EXPECT_TRUE(op.finished());
  EXPECT_THAT(op.failure().value().text, HasSubstr("refused")) << "what was first counts";
}

TEST(OperationEnd, AnOperationWithARestEndsWhenBothAreOver) {
  wire::OperationRecord record;
  record.count = 100;
  record.block_elems = 10;
  record.algorithm = wire::Algorithm::hierarchy;
  EngineConfig config;
  config.members.workers = 2;
  config.channels.fill({.slot_bytes = 16384, .slots = 8});
  const SliceLayout layout = layout_of(config, 0, record);
  for (const bool rest_first : {false, true}) {
    for (const bool fails : {false, true}) {
      Operation op(layout, record, {}, {}, 1);
      op.set_rest();
      const std::optional<Failure> failure =
          fails ? std::optional<Failure>({ErrorCode::aborted, "enough"}) : std::nullopt;
      if (rest_first) {
        op.rest_done({.bits = {0x205}, .blocks = 3, .failure = failure});
        EXPECT_FALSE(op.finished());
        op.slice_done(0);
      } else {
        op.slice_done(0);
        EXPECT_FALSE(op.finished());
        op.rest_done({.bits = {0x205}, .blocks = 3, .failure = failure});
      }
      ASSERT_TRUE(op.finished());
      EXPECT_EQ(op.failure().has_value(), fails);
      EXPECT_THAT(op.union_bitmap(), ElementsAre(0x205));
      EXPECT_EQ(op.union_blocks, 3u);
      EXPECT_EQ(op.result_blocks(), 10u);
    }
  }
}

}  // namespace
}  // namespace nzcl::engine
