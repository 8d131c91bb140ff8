// What nzcl_info --explain says is what a request with that density would choose.
#include "runtime/tools/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/engine_plan.h"

namespace nzcl::tools {
namespace {

using testing::HasSubstr;

Question embedding(double density) {
  return {.bytes = 20'000'000,
          .density = density,
          .packed = true,
          .ranks = 4,
          .hosts = 4,
          .cores = 1,
          .block_elems = 100};
}

/// The configuration that the ranks of a communicator make when they have met: as many in a row on each host.
engine::EngineConfig config_of(const Question& q, const Options& options) {
  engine::Membership m;
  m.members.workers = q.ranks;
  std::vector<std::string> hosts;
  for (int i = 0; i < q.ranks; ++i) hosts.push_back(std::to_string(i * q.hosts / q.ranks));
  m.hosts = m.networks = m.process_spaces = engine::Groups::by_name(hosts);
  m.members_per_core = static_cast<double>((q.ranks + q.hosts - 1) / q.hosts) / q.cores;
  m.links.assign(hosts.size(), engine::own_link(options.link_gbps, q.device_gbps));
  return engine::plan_engine(options, m, {});
}

std::string chosen(const Question& q, const Options& options) {
  wire::OperationRecord record;
  record.count = q.bytes / 4;
  record.block_elems = q.block_elems;
  record.packed_result = q.packed ? 1 : 0;
  record.root_or_density = wire::Density::of_share(q.density).code();
  switch (engine::choose_algorithm(config_of(q, options), record, Algorithm::automatic)) {
    case wire::Algorithm::push:
      return "Chosen: push";
    case wire::Algorithm::doubling:
      return "Chosen: doubling";
    case wire::Algorithm::merging:
      return "Chosen: merging";
    case wire::Algorithm::hierarchy:
      return "Chosen: hierarchy";
  }
  return "?";
}

TEST(Explain, NamesWhatARequestWithThatDensityChooses) {
  std::set<std::string> seen;
  for (const SumOrder order : {SumOrder::rank, SumOrder::any}) {
    for (const double gbps : {0.0, 0.1, 1.0, 100.0}) {
      for (const double density : {0.0, 0.001, 0.0154, 0.3, 1.0}) {
        for (const std::uint64_t bytes : {64ull, 4096ull, 20'000'000ull}) {
          for (const int ranks : {1, 2, 4, 32}) {
            for (const bool packed : {false, true}) {
              Options options;
              options.sum_order = order;
              options.link_gbps = gbps;
              Question q = embedding(density);
              for (const int hosts : {ranks, (ranks + 1) / 2}) {
                q.bytes = bytes, q.ranks = ranks, q.hosts = hosts, q.packed = packed;
                const std::string choice = chosen(q, options);
                EXPECT_THAT(explain(q, options), HasSubstr(choice)) << ranks << " on " << hosts;
                seen.insert(choice);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u) << "of all four";
}

TEST(Explain, SaysWhereTheLinksSpeedComesFrom) {
  Options options;
  Question q = embedding(0.01);
  EXPECT_THAT(explain(q, options), HasSubstr("links of 10 Gb/s (assumed, because no device says it"));
  q.device_gbps = 25;
  EXPECT_THAT(explain(q, options), HasSubstr("links of 25 Gb/s (as the device says)"));
  options.link_gbps = 1;
  EXPECT_THAT(explain(q, options), HasSubstr("links of 1 Gb/s (as option link_gbps says)"));
  q.hosts = 1;
  EXPECT_THAT(explain(q, options), Not(HasSubstr("links of")));
}

TEST(Explain, SaysWhatReachesWhom) {
  Options options;
  Question q = embedding(0.01);
  EXPECT_THAT(explain(q, options), HasSubstr("over tcp, links of"));
  q.hosts = 2;
  EXPECT_THAT(explain(q, options), HasSubstr("over cma within a host and tcp between hosts, links of"));
  options.transport = "shm,ibverbs";
  EXPECT_THAT(explain(q, options), HasSubstr("over shm within a host and ibverbs between hosts, links of"));
  q.hosts = 1;
  EXPECT_THAT(explain(q, options), HasSubstr("over shm\n"));
}

TEST(Explain, RefusesWhatCannotBeAsked) {
  const auto refused = [](const std::function<void(Question&)>& change) -> std::string {
    Question q = embedding(0.01);
    change(q);
    try {
      return explain(q, {});
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_THAT(refused([](Question& q) { q.density = -5; }), HasSubstr("the density is -5"));
  EXPECT_THAT(refused([](Question& q) { q.density = 1.5; }), HasSubstr("the density is 1.5"));
  EXPECT_THAT(refused([](Question& q) { q.density = std::nan(""); }), HasSubstr("the density is nan"));
  EXPECT_THAT(refused([](Question& q) { q.ranks = -5; }), HasSubstr("-5 ranks; there may be 1 to 4096"));
  EXPECT_THAT(refused([](Question& q) { q.ranks = 4097; }), HasSubstr("4097 ranks"));
  EXPECT_THAT(refused([](Question& q) { q.hosts = 0; }), HasSubstr("--hosts is 0"));
  EXPECT_THAT(refused([](Question& q) { q.hosts = 5; }), HasSubstr("--hosts is 5, and there are 4 ranks"));
  EXPECT_THAT(refused([](Question& q) { q.bytes = ~std::uint64_t{0}; }), HasSubstr("no tensor that memory"));
  EXPECT_THAT(refused([](Question& q) { q.block_elems = 0; }), HasSubstr("no tensor that memory"));
}

TEST(Explain, SaysWhichDensityItTakes) {
  Options options;
  EXPECT_THAT(explain(embedding(0.25), options), HasSubstr("25 % of the blocks expected not to be zero"));
  EXPECT_THAT(explain(embedding(0), options), HasSubstr("1 % of the blocks taken not to be zero"));
  Question dense = embedding(0);
  dense.packed = false;
  EXPECT_THAT(explain(dense, options), HasSubstr("100 % of the blocks taken not to be zero"));
}

}  // namespace
}  // namespace nzcl::tools
