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

/// A tensor whose last block is partial survives the way through a stream, and lacks what the stream lacks.
TEST(PerfProblem, AStreamHoldsTheTensorsBlocks) {
  for (const std::uint64_t block : {1u, 7u, 64u}) {
    Problem p = problem();
    p.block = block, p.count = 1003, p.density = 1;
    std::vector<std::byte> tensor(p.bytes()), values(p.blocks() * p.block_bytes()), back(p.bytes());
    p.fill(1, tensor);
    auto indices = p.indices(1);
    ASSERT_EQ(indices.size(), p.blocks());
    p.pack(tensor, indices, values);
    EXPECT_EQ(p.unpack(values, indices, back), 0u);
    EXPECT_EQ(back, tensor);
    indices.pop_back();
    EXPECT_EQ(p.unpack(values, indices, back), 0u);
    EXPECT_NE(back, tensor) << "the last block is missing";
  }
}

TEST(PerfProblem, IndicesAreThoseOfTheBitmap) {
  const Problem p = problem();
  const auto bits = p.bitmap(3);
  const auto indices = p.indices(3);
  EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
  std::vector<std::uint64_t> again(bits.size());
  for (const auto i : indices) again[static_cast<std::size_t>(i) / 64] |= std::uint64_t{1} << (i % 64);
  EXPECT_EQ(again, bits);
}

TEST(PerfProblem, IndicesOutOfPlaceAreCounted) {
  Problem p = problem();
  p.count = 1000, p.block = 10;
  std::vector<std::byte> values(5 * p.block_bytes()), tensor(p.bytes());
  const std::vector<std::int64_t> twice{3, 3}, descending{5, 4, 6}, outside{-1, 7, 100, 8};
  EXPECT_EQ(p.unpack(values, twice, tensor), 1u);
  EXPECT_EQ(p.unpack(values, descending, tensor), 1u);
  EXPECT_EQ(p.unpack(values, outside, tensor), 2u);
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
  Load shared = colocated;  // two hosts of two ranks: half of what each host has, and of the sum
  shared.host_ranks = 2;
  shared.host_density = 0.19;
  EXPECT_DOUBLE_EQ(wire_bound(shared, 1e9), (0.19 + 0.3) / 2);
}

/// By hand: 4.69 bits of position for each element at a density of 0.1, and none where all blocks are there.
TEST(PerfBound, EntropyIsOfValuesAndPositions) {
  Load load{.bytes = 4e6, .blocks = 1e6, .density = 0.1, .union_density = 0.1, .ranks = 2};
  load.aggregators = 1;
  EXPECT_NEAR(entropy_bytes(load), 1e5 * (32 + 4.68996) / 8, 1);
  load.density = 0.001;
  EXPECT_NEAR(entropy_bytes(load), 1e3 * (32 + 11.4078) / 8, 0.1);
  load.aggregators = 0, load.ranks = 4, load.density = 1, load.union_density = 1;
  EXPECT_DOUBLE_EQ(entropy_bytes(load), 2 * 4e6 * 3 / 4);
  load.density = load.union_density = 0;
  EXPECT_DOUBLE_EQ(entropy_bytes(load), 0);
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
