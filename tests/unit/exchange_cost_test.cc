// The predictions by which an exchange is chosen, and the choices that follow from them.
#include "runtime/plan/exchange_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/algorithm_memo.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/partial_type.h"

namespace nzcl::engine {
namespace {

constexpr LinkCosts kLink{.latency = 1, .message = 0.1, .turn = 10, .wire_byte = 0, .moved_byte = 0};

ExchangeCase small(int ranks, double ranks_per_core = 1) {
  return {.ranks = ranks, .owners = ranks, .ranks_per_core = ranks_per_core, .elements = 16};
}

TEST(ExchangeCost, BytesOfWhatIsHeldAndWhere) {
  const ExchangeCase blocks{.elements = 256 * 1000, .block_elems = 256};
  EXPECT_DOUBLE_EQ(coded_bytes(blocks, 0.1), 100 * 1024 + 125) << "blocks and a bitmap";
  EXPECT_DOUBLE_EQ(coded_bytes(blocks, 0), 0) << "nothing is said of nothing";
  ExchangeCase tiles{.elements = 80'000, .block_elems = 1, .tiled = true, .short_codes = true};
  EXPECT_DOUBLE_EQ(coded_bytes(tiles, 1), 320'000) << "all needs no set";
  EXPECT_DOUBLE_EQ(coded_bytes(tiles, 0.5), 160'000 + 10'000) << "a bitmap";
  EXPECT_NEAR(coded_bytes(tiles, 0.05), 4000 * 5, 1) << "gaps of 8 bits";
  EXPECT_NEAR(coded_bytes(tiles, 0.0001), 8 * 6, 0.1) << "offsets of 16 bits";
}

TEST(ExchangeCost, NoFormIsShorterThanTheEntropy) {
  for (const bool tiled : {false, true}) {
    for (const double density : {0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0}) {
      const ExchangeCase c{
          .elements = 1 << 20, .block_elems = tiled ? 1u : 256u, .tiled = tiled, .short_codes = true};
      EXPECT_GE(coded_bytes(c, density), entropy_bytes(c, density)) << density << " " << tiled;
      EXPECT_LE(coded_bytes(c, density), 1.2 * entropy_bytes(c, density)) << density << " " << tiled;
    }
  }
}

TEST(ExchangeCost, AUnionIsDenserThanItsParts) {
  const ExchangeCase c{.ranks = 3, .density = 0.5};
  EXPECT_DOUBLE_EQ(c.union_density(), 0.875);
}

TEST(ExchangeCost, StepsAndMessagesOfASmallOperation) {
  for (const int ranks : {2, 3, 4, 7, 8, 9, 64}) {
    const Prediction push = predict_push(small(ranks), kLink),
                     doubling = predict_doubling(small(ranks), kLink);
    EXPECT_EQ(push.steps, 2);
    EXPECT_EQ(push.messages, 2 * (ranks - 1)) << "the owner gets one from each other rank and sends it one";
    EXPECT_EQ(doubling.steps, std::ceil(std::log2(ranks)));
    EXPECT_EQ(doubling.messages, 2 * std::ceil(std::log2(ranks)));
  }
  ExchangeCase one_hop = small(2);
  one_hop.one_hop = true;
  EXPECT_EQ(predict_push(one_hop, kLink).steps, 1);
  EXPECT_EQ(predict_push(small(1), kLink).messages, 0) << "nobody to send to";
}

TEST(ExchangeCost, WhereRanksShareACoreAllMessagesCount) {
  // 8 ranks on 2 cores: 14 messages by push and 24 by doubling, each of which waits for its turn.
  const Prediction push = predict_push(small(8, 4), kLink), doubling = predict_doubling(small(8, 4), kLink);
  EXPECT_NEAR(push.handling / doubling.handling, 14.0 / 24, 1e-9);
  const Prediction alone = predict_push(small(8), kLink);
  EXPECT_NEAR(alone.handling, 7 * kLink.message, 1e-9) << "half of each of 14";
}

TEST(ExchangeCost, MoreOfAnythingTakesNoLessTime) {
  const LinkCosts link = link_costs("tcp", false, 10);
  for (const auto predict : {&predict_push, &predict_doubling, &predict_merging}) {
    double last = 0;
    for (std::uint64_t elements = 1; elements < (1u << 24); elements *= 4) {
      ExchangeCase c = small(4);
      c.elements = elements;
      const double seconds = predict(c, link).seconds();
      EXPECT_GE(seconds, last) << elements;
      last = seconds;
    }
    last = 0;
    for (const double density : {0.0, 0.001, 0.01, 0.1, 0.5, 1.0}) {
      ExchangeCase c = small(4);
      c.elements = 1 << 22, c.slices = 64, c.density = density;
      const double seconds = predict(c, link).seconds();
      EXPECT_GE(seconds, last) << density;
      last = seconds;
    }
  }
}

TEST(ExchangeCost, ASlowerLinkTakesNoLessTimeAndCountsOnlyBetweenHosts) {
  for (const auto predict : {&predict_push, &predict_doubling, &predict_merging}) {
    for (const char* transport : {"tcp", "ibverbs"}) {
      ExchangeCase c = small(4);
      c.elements = 1 << 22, c.slices = 64, c.density = 0.1;
      double last = 0, least_link = 0;
      for (const double gbps : {400.0, 100.0, 10.0, 1.0, 0.1}) {
        const Prediction p = predict(c, link_costs(transport, false, gbps));
        EXPECT_GE(p.seconds(), last) << gbps;
        EXPECT_DOUBLE_EQ(p.link, p.sent_bytes * 8e-9 / gbps);
        if (least_link == 0) least_link = p.link;
        last = p.seconds();
      }
      EXPECT_GT(last, least_link) << "the slowest link decides";
      EXPECT_EQ(predict(c, link_costs(transport, true, 0.1)).link, 0) << "no link is between them";
    }
  }
}

TEST(ExchangeCost, NobodyLooksForWhatIsNotZeroInStreams) {
  ExchangeCase c = small(4);
  c.elements = 1 << 22, c.density = 0.01;
  const Prediction scanned = predict_push(c, {});
  c.streams = true;
  EXPECT_NEAR(scanned.processing - predict_push(c, {}).processing,
              static_cast<double>(c.tensor_bytes()) * kScannedByte, 1e-9);
}

/// Each letter is a host, with the cores that `cores` says.
EngineConfig config_of(const std::string& hosts, const std::string& transport, int cores,
                       Algorithm algorithm = Algorithm::automatic, double link_gbps = 0) {
  std::vector<std::string> names;
  for (const char host : hosts) names.emplace_back(1, host);
  Membership m;
  m.members.workers = static_cast<int>(hosts.size());
  m.hosts = m.networks = m.process_spaces = Groups::by_name(names);
  m.cache_bytes = 2 << 20;
  for (const char host : hosts)
    m.members_per_core = std::max(m.members_per_core,
                                  static_cast<double>(std::count(hosts.begin(), hosts.end(), host)) / cores);
  Options options;
  options.transport = transport;
  options.algorithm = algorithm;
  m.links.assign(hosts.size(), own_link(link_gbps, 0));
  return plan_engine(options, m, {});
}

wire::Algorithm choice(const EngineConfig& config, std::uint64_t count) {
  wire::OperationRecord record;
  record.count = count;
  record.block_elems = 256;
  record.type = static_cast<std::uint8_t>(DataType::float32);
  return choose_algorithm(config, record, Algorithm::automatic);
}

TEST(ExchangeChoice, ManyRanksWithCoresOfTheirOwnDoubleWhatIsSmall) {
  const std::string hosts = "abcdefghijklmnopqrstuvwxyzABCDEF";  // 32 of them
  EXPECT_EQ(choice(config_of(hosts, "tcp", 4), 16), wire::Algorithm::doubling);
  EXPECT_EQ(choice(config_of(hosts, "ibverbs", 4), 16), wire::Algorithm::doubling);
  EXPECT_EQ(choice(config_of(hosts, "tcp", 4), 1 << 20), wire::Algorithm::push) << "it does not fit";
  EXPECT_EQ(choice(config_of(hosts, "tcp", 4, Algorithm::push), 16), wire::Algorithm::push)
      << "as the option says";
}

/// So many ranks, each on a host and a core of its own, on links of 100 Gb/s.
EngineConfig config_of_many(int ranks, SumOrder order) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back(std::to_string(rank));
  Membership m;
  m.members.workers = ranks;
  m.hosts = m.networks = m.process_spaces = Groups::by_name(names);
  m.links.assign(names.size(), own_link(100, 0));
  Options options;
  options.transport = "ibverbs";
  options.sum_order = order;
  return plan_engine(options, m, {});
}

// By push an owner has two messages with each rank, which takes longer than log2 N steps.
TEST(ExchangeChoice, SmallOperationsOfAThousandRanksTakeLog2Steps) {
  for (const int ranks : {65, 128, 256, 1000, 1024, 4096}) {
    SCOPED_TRACE(ranks);
    const EngineConfig in_order = config_of_many(ranks, SumOrder::rank),
                       any = config_of_many(ranks, SumOrder::any);
    EXPECT_EQ(choice(in_order, 2), wire::Algorithm::doubling) << "whose sums are in the order of the ranks";
    EXPECT_NE(choice(any, 2), wire::Algorithm::push);
    if (ranks >= 256) {
      EXPECT_EQ(choice(any, (64 << 10) / 4), wire::Algorithm::merging);
    }
    EXPECT_EQ(choice(in_order, (64 << 10) / 4), wire::Algorithm::push) << "merging has an order of its own";
    EXPECT_EQ(choice(any, (64 << 20) / 4), wire::Algorithm::push) << "log2 N times the bytes";
  }
}

TEST(ExchangeChoice, RanksThatShareCoresPush) {
  EXPECT_EQ(choice(config_of("aaa", "cma", 2), 16), wire::Algorithm::push);
  EXPECT_EQ(choice(config_of("aaaaaaaa", "cma", 2), 16), wire::Algorithm::push);
  EXPECT_EQ(choice(config_of("aaaaaaaaaaaaaaaa", "tcp", 2), 16), wire::Algorithm::push);
}

TEST(ExchangeChoice, TwoRanksTakeOneHopAndOneRankNothing) {
  EXPECT_EQ(choice(config_of("ab", "tcp", 4), 16), wire::Algorithm::push);
  EXPECT_EQ(choice(config_of("a", "tcp", 4), 16), wire::Algorithm::push);
}

TEST(ExchangeChoice, TwoRanksDoubleWhatIsTooLargeForOneHop) {
  for (const char* transport : {"tcp", "cma", "ibverbs"}) {
    const EngineConfig config = config_of("ab", transport, 4);
    EXPECT_EQ(choice(config, (8 << 10) / 4), wire::Algorithm::doubling) << transport;
    EXPECT_EQ(choice(config, (32 << 10) / 4), wire::Algorithm::doubling) << transport;
    EXPECT_EQ(choice(config, (64 << 10) / 4), wire::Algorithm::push) << "it does not fit, " << transport;
  }
  EXPECT_EQ(choice(config_of("abcd", "cma", 4), (8 << 10) / 4), wire::Algorithm::push)
      << "four send more bytes by doubling";
  wire::OperationRecord elements;
  elements.count = (8 << 10) / 4;
  elements.block_elems = 1;
  elements.type = static_cast<std::uint8_t>(DataType::float32);
  EXPECT_EQ(choose_algorithm(config_of("ab", "cma", 4), elements, Algorithm::automatic),
            wire::Algorithm::push)
      << "codes of single elements are shorter than a bitmap";
}

/// An allreduce of 2^20 single elements, whose result is packed.
wire::OperationRecord stream_record(DataType type, ReduceOp op) {
  wire::OperationRecord record;
  record.count = 1 << 20;
  record.block_elems = 1;
  record.type = static_cast<std::uint8_t>(type);
  record.op = static_cast<std::uint8_t>(op);
  record.packed_result = 1;
  return record;
}

TEST(ExchangeChoice, SumsThatDependOnTheOrderAreMergedOnlyIfAnyOrderWillDo) {
  EngineConfig config = config_of("abcd", "tcp", 4);
  config.link_costs = {.wire_byte = 1e-6};  // bytes are all that counts, and merging sends fewer
  const auto chosen = [&](DataType type, ReduceOp op) {
    return choose_algorithm(config, stream_record(type, op), Algorithm::automatic);
  };
  for (const DataType type :
       {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16, DataType::int32}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max}) {
      const bool depends = type != DataType::int32 && (op == ReduceOp::sum || op == ReduceOp::avg);
      config.any_order = false;
      EXPECT_EQ(chosen(type, op), depends ? wire::Algorithm::push : wire::Algorithm::merging)
          << name_of(type) << " " << name_of(op);
      config.any_order = true;
      if (element_bytes(type) < 4) continue;  // whose partial sums are twice as long
      EXPECT_EQ(chosen(type, op), wire::Algorithm::merging) << name_of(type);
    }
  }
  EngineConfig three = config_of("abc", "tcp", 4);
  EXPECT_NO_THROW(static_cast<void>(
      choose_algorithm(three, stream_record(DataType::float32, ReduceOp::sum), Algorithm::merging)));
  EXPECT_TRUE(same_in_any_order(DataType::float32, ReduceOp::sum, 3));
}

/// The sparse gradient of an embedding: 50,000 rows of 100 floats, whose result is packed.
wire::OperationRecord embedding(double expected_density) {
  wire::OperationRecord record;
  record.count = 5'000'000;
  record.block_elems = 100;
  record.type = static_cast<std::uint8_t>(DataType::float32);
  record.packed_result = 1;
  record.root_or_density = wire::Density::of_share(expected_density).code();
  return record;
}

TEST(ExchangeChoice, RowsOfAnEmbeddingAreMergedOverSlowLinks) {
  const auto chosen = [](double gbps, double density, bool any_order) {
    EngineConfig config = config_of("abcd", "tcp", 1, Algorithm::automatic, gbps);
    config.any_order = any_order;
    return choose_algorithm(config, embedding(density), Algorithm::automatic);
  };
  for (const double density : {0.0, 0.005, 0.0154, 0.05}) {
    EXPECT_EQ(chosen(1, density, true), wire::Algorithm::merging) << density;
    EXPECT_EQ(chosen(1, density, false), wire::Algorithm::push) << "the order of sums matters";
  }
  EXPECT_EQ(chosen(1, 1, true), wire::Algorithm::push) << "all ranks have all rows";
  wire::OperationRecord large = embedding(0.01);
  large.block_elems = 50'000;
  EngineConfig config = config_of("abcd", "tcp", 1, Algorithm::automatic, 1);
  config.any_order = true;
  EXPECT_EQ(choose_algorithm(config, large, Algorithm::automatic), wire::Algorithm::push)
      << "no tile holds such a block";
}

// Two ranks add in the same order by merging, which would take fewer steps for a dense tensor between hosts.
TEST(ExchangeChoice, DenseResultsOfLargeBlocksArePushedUnlessADensityIsExpected) {
  const EngineConfig config = config_of("ab", "tcp", 4, Algorithm::automatic, 1);
  wire::OperationRecord record = embedding(0);
  record.packed_result = 0;
  for (const std::uint64_t count : {16384, 5'000'000}) {  // too large for doubling
    record.count = count;
    record.root_or_density = 0;
    EXPECT_EQ(choose_algorithm(config, record, Algorithm::automatic), wire::Algorithm::push) << count;
    record.root_or_density = wire::Density::of_share(0.01).code();
    EXPECT_EQ(choose_algorithm(config, record, Algorithm::automatic), wire::Algorithm::merging) << count;
  }
}

TEST(ExchangeChoice, FollowsFromTheDensityThatTheRequestExpects) {
  EngineConfig config = config_of("abcd", "tcp", 4, Algorithm::automatic, 1);
  config.any_order = true;
  wire::OperationRecord dense_result = embedding(0);
  dense_result.packed_result = 0;
  EXPECT_EQ(expected_density(config, dense_result), 1);
  EXPECT_EQ(expected_density(config, embedding(0)), 0.01);
  EXPECT_NEAR(expected_density(config, embedding(0.3)), 0.3, 1e-4);
  EXPECT_EQ(choose_algorithm(config, dense_result, Algorithm::automatic), wire::Algorithm::push);
  dense_result.root_or_density = wire::Density::of_share(0.01).code();
  EXPECT_EQ(choose_algorithm(config, dense_result, Algorithm::automatic), wire::Algorithm::merging);
  config.packed_density = 1;
  EXPECT_EQ(expected_density(config, embedding(0)), 1);
  EXPECT_EQ(choose_algorithm(config, embedding(0), Algorithm::automatic), wire::Algorithm::push);
}

// Whatever is chosen, no other way that may be taken is predicted to be clearly faster.
TEST(ExchangeChoice, IsTheFastestOfThosePredicted) {
  int merged = 0, doubled = 0, pushed = 0, summed_in_levels = 0;
  for (const std::string hosts : {"abcd", "aabb", "abcdefghijklmnop"}) {
    for (const double gbps : {0.1, 1.0, 10.0, 100.0}) {
      EngineConfig config = config_of(hosts, "tcp", 4, Algorithm::automatic, gbps);
      config.any_order = true;
      for (const double density : {0.0, 0.001, 0.01, 0.1, 0.5, 1.0}) {
        for (const std::uint64_t count : {200, 2000, 5'000'000}) {
          for (const std::uint64_t block : {1, 100}) {
            wire::OperationRecord record = embedding(density);
            record.count = count, record.block_elems = block;
            const ExchangeCase c = exchange_case(config, record, expected_density(config, record));
            const double push = predict_push(c, config.link_costs).seconds();
            const double doubling = predict_doubling(c, config.link_costs).seconds();
            const double merging = predict_merging(c, config.link_costs).seconds();
            switch (choose_algorithm(config, record, Algorithm::automatic)) {
              case wire::Algorithm::push:
                ++pushed;
                if (count == 5'000'000) {
                  EXPECT_GE(merging, kMergingShare * push);
                }
                break;
              case wire::Algorithm::doubling:
                ++doubled;
                EXPECT_LT(doubling, doubling_share(c.ranks) * push);
                break;
              case wire::Algorithm::merging:
                ++merged;
                EXPECT_LT(merging, kMergingShare * push);
                break;
              case wire::Algorithm::hierarchy: {
                const HierarchyShape& shape = config.hierarchy;
                const Prediction levels =
                    predict_hierarchy(c, hierarchy_case(config, record), shape.within, shape.between);
                ++summed_in_levels;
                EXPECT_LT(levels.seconds(), kHierarchyShare * push);
                EXPECT_EQ(hosts, "aabb");
                break;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(merged, 0);
  EXPECT_GT(doubled, 0);
  EXPECT_GT(summed_in_levels, 0);
  EXPECT_GT(pushed, 0);
}

TEST(LinkSpeed, IsTheLeastThatAnyMemberKnows) {
  using Source = LinkSpeed::Source;
  EXPECT_EQ(own_link(0, 0).source, Source::assumed);
  EXPECT_EQ(own_link(0, 25), (LinkSpeed{25, Source::device}));
  EXPECT_EQ(own_link(1, 25), (LinkSpeed{1, Source::option}));
  EXPECT_EQ(slowest_link({}), (LinkSpeed{10, Source::assumed}));
  EXPECT_EQ(slowest_link({own_link(0, 0), own_link(0, 100)}), (LinkSpeed{100, Source::device}))
      << "who does not know says nothing";
  EXPECT_EQ(slowest_link({own_link(0, 100), own_link(1, 100), own_link(0, 25)}),
            (LinkSpeed{1, Source::option}));
}

TEST(AlgorithmMemo, AnswersAsIfItRememberedNothing) {
  EngineConfig config = config_of("abcd", "tcp", 4);
  config.link_costs = {.wire_byte = 1e-6};
  config.any_order = true;
  AlgorithmMemo memo(config);
  std::vector<wire::OperationRecord> records;
  for (const std::uint64_t count : {1, 16, 1 << 10, 1 << 14, 1 << 20}) {
    for (const std::uint64_t block : {1, 16, 256}) {  // more shapes than it remembers
      for (const int packed : {0, 1}) {
        wire::OperationRecord record = stream_record(DataType::float32, ReduceOp::sum);
        record.count = count, record.block_elems = block;
        record.packed_result = static_cast<std::uint8_t>(packed);
        records.push_back(record);
        record.root_or_density = wire::Density::of_share(0.9).code();
        records.push_back(record);
      }
    }
  }
  std::vector<wire::Algorithm> seen;
  for (int round = 0; round < 3; ++round) {
    for (const wire::OperationRecord& record : records) {
      for (const Algorithm asked : {Algorithm::automatic, Algorithm::push}) {
        const wire::Algorithm expected = choose_algorithm(config, record, asked);
        for (int again = 0; again < 2; ++again) EXPECT_EQ(memo.choose(record, asked), expected);
        seen.push_back(expected);
      }
    }
  }
  for (const wire::Algorithm some : {wire::Algorithm::push, wire::Algorithm::merging})
    EXPECT_NE(std::count(seen.begin(), seen.end(), some), 0) << static_cast<int>(some);
}

TEST(AlgorithmMemo, ARefusalIsNotRemembered) {
  const EngineConfig config = config_of("aabb", "tcp", 4);
  AlgorithmMemo memo(config);
  wire::OperationRecord large = stream_record(DataType::float32, ReduceOp::sum);
  EXPECT_THROW(memo.choose(large, Algorithm::doubling), Error);
  EXPECT_THROW(memo.choose(large, Algorithm::doubling), Error);
  EXPECT_EQ(memo.choose(large, Algorithm::push), wire::Algorithm::push);
}

TEST(ExchangeCost, MergingSendsTheUnionsOfOneAndTwoAndFourRanks) {
  ExchangeCase c = small(8);
  c.elements = 1 << 22, c.block_elems = 1, c.density = 0.01, c.tiled = true;
  double bytes = 0;
  for (const double ranks : {1.0, 2.0, 4.0}) bytes += coded_bytes(c, c.union_density(ranks));
  EXPECT_NEAR(predict_merging(c, {}).sent_bytes, bytes, 0.01 * bytes);
  EXPECT_EQ(predict_merging(c, {}).steps, 3);
  c.ranks = 5;
  EXPECT_EQ(predict_merging(c, {}).steps, 4) << "two rounds, and the fifth rank's way in and out";
}

}  // namespace
}  // namespace nzcl::engine
