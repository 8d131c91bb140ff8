// The inputs of nzcl_allreduce_perf, its check of results, and its bounds.
#include "perf/allreduce/bound.h"
#include "perf/allreduce/problem.h"
#include "perf/plain_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace perf::allreduce {
namespace {

using nzcl::DataType;
using nzcl::ReduceOp;

Problem problem() { return {.count = 100000, .block = 64, .density = 0.2, .ranks = 4}; }

TEST(PerfProblem, DensitiesAreWhatWasAskedFor) {
  Problem p = problem();
  for (int r = 0; r < p.ranks; ++r) EXPECT_NEAR(p.own_density(r), 0.2, 0.04);
  EXPECT_NEAR(p.union_density(), 1 - 0.8 * 0.8 * 0.8 * 0.8, 0.05);
  p.overlap = Overlap::all;
  EXPECT_NEAR(p.union_density(), 0.2, 0.04);
  p.overlap = Overlap::none;
  EXPECT_NEAR(p.union_density(), 0.8, 0.05);
  for (int r = 0; r < p.ranks; ++r) EXPECT_NEAR(p.own_density(r), 0.2, 0.04);
}

TEST(PerfProblem, BitmapAndBytesAgree) {
  const Problem p = problem();
  std::vector<std::byte> data(p.bytes());
  p.fill(2, data);
  const auto bits = p.bitmap(2);
  for (std::uint64_t i = 0; i < p.count; ++i) {
    float v = 0;
    std::memcpy(&v, data.data() + 4 * i, 4);
    ASSERT_EQ(v != 0, (bits[i / p.block / 64] >> (i / p.block % 64) & 1) != 0) << i;
  }
}

/// The check must find every wrong element, and none in a right result.
TEST(PerfProblem, OneRanksOwnInputIsItsSumAndOneChangedElementIsFound) {
  for (int type = 0; type < nzcl::kDataTypes; ++type) {
    for (int op = 0; op < nzcl::kReduceOps; ++op) {
      Problem p = problem();
      p.type = static_cast<DataType>(type);
      p.op = static_cast<ReduceOp>(op);
      p.ranks = 1;
      std::vector<std::byte> data(p.bytes());
      p.fill(0, data);
      EXPECT_EQ(p.wrong(data), 0u) << nzcl::name_of(p.type) << ' ' << nzcl::name_of(p.op);
      std::memset(data.data() + 777 * nzcl::element_bytes(p.type), 0x4e, nzcl::element_bytes(p.type));
      EXPECT_EQ(p.wrong(data), 1u) << nzcl::name_of(p.type) << ' ' << nzcl::name_of(p.op);
    }
  }
}

TEST(PerfProblem, ARankThatIsLeftOutIsFound) {
  Problem p = problem();
  p.overlap = Overlap::all;
  std::vector<std::byte> data(p.bytes());
  p.fill(0, data);
  EXPECT_NEAR(static_cast<double>(p.wrong(data)) / static_cast<double>(p.count), p.union_density(), 0.01);
}

TEST(PerfBound, IsTheDesignsTable) {
  const Load colocated{.bytes = 1e9, .density = 0.1, .union_density = 0.3, .ranks = 4};
  EXPECT_DOUBLE_EQ(wire_bound(colocated, 1e9), (0.1 + 0.3) * 3 / 4);
  Load dedicated = colocated;
  dedicated.aggregators = 4;
  EXPECT_DOUBLE_EQ(wire_bound(dedicated, 1e9), 0.3);
  dedicated.aggregators = 2;
  EXPECT_DOUBLE_EQ(wire_bound(dedicated, 1e9), 0.6);
}

TEST(PerfBound, MemoryCountsScanCopiesSumsAndZeroes) {
  const MemorySpeed speed{.read = 10e9, .copy = 5e9, .add = 4e9};
  Load load{.bytes = 1e9, .density = 0, .union_density = 0, .ranks = 4};
  load.in_place = true;
  EXPECT_DOUBLE_EQ(memory_bound(load, speed), 0.4) << "the scan alone";
  load.scans = false;
  EXPECT_DOUBLE_EQ(memory_bound(load, speed), 0);
  load.density = load.union_density = 1;
  EXPECT_DOUBLE_EQ(memory_bound(load, speed), 6.0 / 5 + 4.0 / 4);
}

/// If each rank took the full amount, many ranks would fill the host's memory before anything is measured.
TEST(PerfBound, RanksShareWhatMustNotFitTheCache) {
  const std::size_t alone = bytes_out_of_cache(), least = 32 << 20, page = 4096;
  EXPECT_GE(alone, least);
  for (const int ranks : {2, 8, 64}) {
    const auto n = static_cast<std::size_t>(ranks);
    EXPECT_GE(bytes_out_of_cache(ranks), least);
    EXPECT_GE(n * (bytes_out_of_cache(ranks) + page), alone);
    EXPECT_LE(bytes_out_of_cache(ranks), std::max(least, alone / n));
  }
}

}  // namespace
}  // namespace perf::allreduce
