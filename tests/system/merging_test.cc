// Allreduces by merging, compared with a plain sum: in the order of ranks where that has the same bits, and
// otherwise in the order of the rounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "tests/system/misuse.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/run_one.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Setting by_merging(int ranks, int lanes = 1, const char* transport = "loopback") {
  Setting s = quick(ranks);
  s.options.timeout_s = 3600;  // nothing here may need the timeout to end
  s.transport = transport;
  s.options.lanes = lanes;
  s.options.algorithm = Algorithm::merging;
  return s;
}

bool is_float_sum(const Problem& p) {
  const bool is_float = p.type == DataType::float32 || p.type == DataType::float64 ||
                        p.type == DataType::float16 || p.type == DataType::bfloat16;
  return is_float && (p.op == ReduceOp::sum || p.op == ReduceOp::avg);
}

template <typename Value>
std::vector<Value> values_of(const Problem& p, int rank) {
  const auto input = make_input(p, rank);
  std::vector<Value> values(p.count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (element_bytes(p.type) == sizeof(Value)) {
      std::memcpy(&values[i], input.data() + i * sizeof(Value), sizeof(Value));
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, input.data() + i * 2, 2);
      values[i] =
          static_cast<Value>(p.type == DataType::float16 ? half_to_float(half) : bfloat16_to_float(half));
    }
  }
  return values;
}

/// Adds up as the page about merging says: ranks that are too many for a power of two first, in pairs from
/// rank 0 on, then neighbours, then pairs of them, and so on.
template <typename Value>
std::vector<std::byte> sum_in_rounds(const Problem& p) {
  const auto ranks = static_cast<std::size_t>(p.ranks);
  const std::size_t places = std::bit_floor(ranks), givers = ranks - places;
  std::vector<std::vector<Value>> sums;
  const auto add = [](std::vector<Value>& to, const std::vector<Value>& more) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
  };
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto values = values_of<Value>(p, static_cast<int>(r));
    if (r < 2 * givers && r % 2 == 1) {
      add(sums.back(), values);
    } else {
      sums.push_back(values);
    }
  }
  for (std::size_t step = 1; step < places; step *= 2) {
    for (std::size_t i = 0; i < places; i += 2 * step) add(sums[i], sums[i + step]);
  }
  std::vector<std::byte> result(p.bytes());
  for (std::size_t i = 0; i < p.count; ++i) {
    Value v = sums[0][i];
    if (p.op == ReduceOp::avg) v /= static_cast<Value>(p.ranks);
    const auto store = [&](auto x) { std::memcpy(result.data() + i * sizeof x, &x, sizeof x); };
    if (p.type == DataType::float16) {
      store(float_to_half(static_cast<float>(v)));
    } else if (p.type == DataType::bfloat16) {
      store(float_to_bfloat16(static_cast<float>(v)));
    } else {
      store(v);
    }
  }
  return result;
}

Expected expected_of(const Problem& p) {
  Expected expected = make_expected(p);
  if (!is_float_sum(p) || p.ranks <= 3) return expected;
  expected.data = p.type == DataType::float64 ? sum_in_rounds<double>(p) : sum_in_rounds<float>(p);
  return expected;
}

class MergingOfRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(MergingOfRanksTest, EveryTypeAndOperation) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      for (const Sparsity sparsity : {Sparsity::random, Sparsity::dense}) {
        Problem p{.type = static_cast<DataType>(type),
                  .op = static_cast<ReduceOp>(op),
                  .count = 20011,
                  .block = 1,
                  .sparsity = sparsity,
                  .ranks = GetParam()};
        problems.emplace_back(p, expected_of(p));
      }
    }
  }
  const auto errors = run_ranks(by_merging(GetParam()), [&](Communicator& c) {
    for (const auto& [p, expected] : problems) run_one(c, p, expected, Form::in_place);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(MergingOfRanksTest, EverySizeSparsityAndForm) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (const std::uint64_t count : {0, 1, 97, 256, 257, 4099, 70001}) {
    for (const Sparsity sparsity : kSparsities) {
      for (const std::uint64_t block : {1, 16, 256, 5000}) {  // large blocks are pushed
        Problem p{.count = count, .block = block, .sparsity = sparsity, .ranks = GetParam()};
        const bool pushed = std::min(block, count) * 4 > 4096;
        problems.emplace_back(p, pushed ? make_expected(p) : expected_of(p));
      }
    }
  }
  const auto errors = run_ranks(by_merging(GetParam(), 2), [&](Communicator& c) {
    int turn = 0;
    for (const auto& [p, expected] : problems) {
      run_one(c, p, expected, Form::in_place);
      run_one(c, p, expected, turn++ % 2 ? Form::out_of_place : Form::with_bitmap);
      if (p.sparsity == Sparsity::random) run_one(c, p, expected, Form::dense_flag);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

// Streams, their packed results and dense ones, some of which do not fit and some of which grow.
TEST_P(MergingOfRanksTest, StreamsAndPackedResults) {
  const int ranks = GetParam();
  const auto errors = run_ranks(by_merging(ranks, ranks % 2 + 1), [&](Communicator& c) {
    for (const std::uint64_t block : {1, 8}) {
      for (const Sparsity sparsity : kSparsities) {
        const Problem p{.count = 40003, .block = block, .sparsity = sparsity, .ranks = ranks};
        const Expected expected = expected_of(p);
        const auto dense = make_input(p, c.rank());
        std::vector<std::int32_t> indices;
        std::vector<std::byte> values;
        for (std::uint64_t b = p.blocks(); b-- > 0;) {  // not in ascending order
          if (!holds(p, c.rank(), b)) continue;
          indices.push_back(static_cast<std::int32_t>(b));
          const std::uint64_t n = std::min(block * 4, p.bytes() - b * block * 4);
          values.insert(values.end(), dense.begin() + static_cast<long>(b * block * 4),
                        dense.begin() + static_cast<long>(b * block * 4 + n));
          values.resize(indices.size() * block * 4);
        }
        values.resize(std::max<std::size_t>(values.size(), 8));
        std::vector<std::byte> output(p.bytes(), std::byte{0x77});
        const auto v = c.register_buffer(values.data(), values.size());
        const auto o = c.register_buffer(output.data(), output.size());
        SparseAllreduceRequest r{.values = values.data(),
                                 .indices = indices,
                                 .count = p.count,
                                 .block_elems = block,
                                 .output = output.data()};
        c.allreduce_sparse(r).wait();
        EXPECT_EQ(first_difference(output, expected.data), -1) << p.text();

        const std::uint64_t blocks = count_bits(expected.bits);
        std::vector<std::byte> packed(std::max<std::uint64_t>(8, blocks * block * 4));
        r.output = nullptr;
        r.packed_capacity = blocks / 2;  // the rest grows
        r.packed_values = packed.data();
        std::vector<std::byte> grown;
        r.packed_grow = [&](std::uint64_t n) {
          grown.resize(n * block * 4);
          return PackedMemory{grown.data(), {}};
        };
        Work work = c.allreduce_sparse(r);
        work.wait();
        const auto& result = grown.empty() ? packed : grown;
        std::uint64_t i = 0;
        ASSERT_EQ(work.packed_indices().size(), blocks);
        for (const std::int64_t b : work.packed_indices()) {
          const auto at = static_cast<std::uint64_t>(b) * block * 4;
          const std::uint64_t n = std::min(block * 4, p.bytes() - at);
          EXPECT_EQ(std::memcmp(result.data() + i++ * block * 4, expected.data.data() + at, n), 0)
              << p.text() << " block " << b;
        }
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

// Small and large, merged and pushed, all at once.
TEST_P(MergingOfRanksTest, ManyInFlight) {
  constexpr int kInFlight = 60;
  const auto errors = run_ranks(by_merging(GetParam(), 2), [&](Communicator& c) {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<Work> works;
    for (int i = 0; i < kInFlight; ++i) {
      constexpr std::array<std::size_t, 4> kCounts{1, 200, 100000, 700};
      buffers.push_back(std::make_unique<Buffer>(c, kCounts[static_cast<std::size_t>(i) % 4]));
      std::fill(buffers.back()->data.begin(), buffers.back()->data.end(), static_cast<float>(i + c.rank()));
      AllreduceRequest r = buffers.back()->request();
      if (i % 3 == 0) r.algorithm = Algorithm::push;
      works.push_back(c.allreduce(r));
    }
    const int n = c.size();
    for (int i = 0; i < kInFlight; ++i) {
      works[static_cast<std::size_t>(i)].wait();
      EXPECT_THAT(buffers[static_cast<std::size_t>(i)]->data,
                  Each(static_cast<float>(i * n + n * (n - 1) / 2)));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, MergingOfRanksTest, ::testing::Values(2, 3, 4, 5, 6, 8));

TEST(Merging, MinusZeroIsLostOnlyWhereSomebodyHoldsNothing) {
  for (const int ranks : {2, 3, 4, 5}) {
    const auto errors = run_ranks(by_merging(ranks), [&](Communicator& c) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max}) {
        std::vector<float> data{-0.0f, c.rank() == 0 ? -0.0f : 0.0f, -1.0f, c.rank() == 1 ? -2.0f : 0.0f,
                                c.rank() == 0 ? 3.0f : 0.0f};
        const auto region = c.register_buffer(data.data(), data.size() * sizeof(float));
        c.allreduce(
             {.input = data.data(), .output = data.data(), .count = data.size(), .op = op, .block_elems = 1})
            .wait();
        const bool sums = op == ReduceOp::sum || op == ReduceOp::avg;
        EXPECT_TRUE(std::signbit(data[0])) << name_of(op);
        EXPECT_EQ(std::signbit(data[1]), op == ReduceOp::min) << name_of(op);
        EXPECT_EQ(data[2], op == ReduceOp::sum ? static_cast<float>(-ranks) : -1.0f) << name_of(op);
        if (sums) continue;
        EXPECT_EQ(data[3], op == ReduceOp::min ? -2.0f : 0.0f) << name_of(op);
        EXPECT_EQ(data[4], op == ReduceOp::max ? 3.0f : 0.0f) << name_of(op);
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Merging, OverEveryTransport) {
  for (const char* transport : {"cma", "shm", "tcp"}) {
    for (const int ranks : {2, 3, 4}) {
      const auto errors = run_ranks(by_merging(ranks, 1, transport), [&](Communicator& c) {
        for (const std::uint64_t count : {1, 3000, 200000}) {
          const Problem p{.count = count, .block = 1, .ranks = ranks};
          const Expected expected = expected_of(p);
          for (int i = 0; i < 5; ++i) run_one(c, p, expected, Form::in_place);
        }
      });
      EXPECT_THAT(errors, Each("")) << transport;
    }
  }
}

/// The packed result of a sparse sum in which each rank has every 100th block and some of its own.
struct Packed {
  std::vector<std::byte> values;
  std::vector<std::int64_t> indices;
  Algorithm algorithm = Algorithm::automatic;  // by which it was exchanged
  bool operator==(const Packed&) const = default;
};
Packed sum_of_streams(Communicator& c, DataType type, ReduceOp op, std::uint64_t block, Algorithm algorithm) {
  constexpr std::uint64_t kBlocks = 300000;
  const std::uint64_t bytes = block * element_bytes(type);
  std::vector<std::int32_t> blocks;
  for (std::uint64_t b = 0; b < kBlocks; ++b) {
    if (b % 100 == 0 || (b * 7919 + static_cast<std::uint64_t>(c.rank())) % 101 == 0)
      blocks.push_back(static_cast<std::int32_t>(b));
  }
  const Problem p{.type = type, .count = blocks.size() * block, .block = block, .ranks = c.size()};
  std::vector<std::byte> values = make_input(p, c.rank());
  Packed result;
  result.values.resize(2 * blocks.size() * bytes);
  const auto registered = c.register_buffer(values.data(), values.size());
  Work work = c.allreduce_sparse({.values = values.data(),
                                  .indices = blocks,
                                  .count = kBlocks * block,
                                  .type = type,
                                  .op = op,
                                  .block_elems = block,
                                  .packed_values = result.values.data(),
                                  .packed_capacity = 2 * blocks.size(),
                                  .algorithm = algorithm,
                                  .expected_density = 0.02});
  work.wait();
  result.algorithm = work.statistics().algorithm;
  result.indices.assign(work.packed_indices().begin(), work.packed_indices().end());
  result.values.resize(result.indices.size() * bytes);
  return result;
}

// Lists of two ranks give the bits of push, on both ranks.
TEST(Merging, OfTheListsOfTwoRanksHasTheBitsOfPush) {
  for (const char* transport : {"loopback", "cma", "shm", "tcp"}) {
    for (const int lanes : {1, 2}) {
      Setting s = by_merging(2, lanes, transport);
      s.options.algorithm = Algorithm::automatic;
      std::array<std::vector<Packed>, 2> results;
      const auto errors = run_ranks(s, [&](Communicator& c) {
        for (int t = 0; t < kDataTypes; ++t) {
          for (int o = 0; o < kReduceOps; ++o) {
            const auto type = static_cast<DataType>(t);
            const auto op = static_cast<ReduceOp>(o);
            for (const std::uint64_t block : {1, 5}) {
              const Packed pushed = sum_of_streams(c, type, op, block, Algorithm::push);
              const Packed merged = sum_of_streams(c, type, op, block, Algorithm::merging);
              EXPECT_EQ(pushed.algorithm, Algorithm::push);
              EXPECT_EQ(merged.algorithm, Algorithm::merging);
              EXPECT_EQ(pushed.indices, merged.indices)
                  << name_of(type) << " " << name_of(op) << " " << block;
              EXPECT_EQ(pushed.values, merged.values) << name_of(type) << " " << name_of(op) << " " << block;
              results[static_cast<std::size_t>(c.rank())].push_back(merged);
            }
          }
        }
      });
      EXPECT_THAT(errors, Each("")) << transport;
      EXPECT_EQ(results[0], results[1]) << "all ranks have the same, " << transport;
      EXPECT_FALSE(results[0].empty());
    }
  }
}

TEST(Merging, ARefusalFailsTheOperationAndNothingElse) {
  for (const int ranks : {2, 3, 5, 8}) {
    const auto errors = run_ranks(by_merging(ranks), [&](Communicator& c) {
      Buffer b(c, 100000);
      for (int i = 0; i < 24; ++i) {
        AllreduceRequest r = b.request();
        const int refuser = i % c.size(), higher = (i + 1) % c.size();
        if (i % 2 == 0 && (c.rank() == refuser || (i % 4 == 0 && c.rank() == higher))) r.input = nullptr;
        const std::string text = error_of([&] { c.allreduce(r).wait(); }).second;
        const int told = i % 4 == 0 ? std::min(refuser, higher) : refuser;
        if (i % 2 != 0) {
          EXPECT_EQ(text, "");
        } else if (r.input == nullptr) {
          EXPECT_THAT(text, StartsWith("allreduce: input is null"));
        } else {
          EXPECT_EQ(text, "operation " + std::to_string(i) + ": rank " + std::to_string(told) +
                              " refused its request: input is null");
        }
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Merging, RanksThatDisagreeFindOut) {
  const std::vector<std::function<void(AllreduceRequest&)>> changes{
      [](AllreduceRequest& r) { r.algorithm = Algorithm::push; },
      [](AllreduceRequest& r) { r.op = ReduceOp::max; },
      [](AllreduceRequest& r) { r.tag = 9; },
      [](AllreduceRequest& r) { r.expected_density = 0.5; },
      [](AllreduceRequest& r) { r.count = 100000; },
      [](AllreduceRequest& r) { r.count = 1; }};
  for (const auto& change : changes) {
    for (const int lanes : {1, 3}) {
      for (int odd = 0; odd < 5; ++odd) {
        const auto errors = run_ranks(by_merging(5, lanes), [&](Communicator& c) {
          Buffer b(c, 100000);
          AllreduceRequest r = b.request();
          r.count = 50000;
          c.allreduce(r).wait();
          if (c.rank() == odd) change(r);
          c.allreduce(r).wait();
        });
        for (const std::string& text : errors)
          EXPECT_THAT(text, AllOf(HasSubstr("disagree"), HasSubstr("operation 1"))) << "rank " << odd;
      }
    }
  }
}

TEST(Merging, WhoDoesNotJoinIsNamed) {
  for (int absent = 0; absent < 5; ++absent) {
    Setting s = by_merging(5);
    s.options.timeout_s = 1;
    const auto errors = run_ranks(s, [&](Communicator& c) {
      Buffer b(c, 3000);
      c.allreduce(b.request()).wait();
      if (c.rank() != absent) c.allreduce(b.request()).wait();
      while (!c.async_error()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
    for (int r = 0; r < 5; ++r) {
      if (r == absent) continue;
      EXPECT_THAT(errors[static_cast<std::size_t>(r)],
                  HasSubstr("rank(s) " + std::to_string(absent) + " did not join"));
    }
  }
}

TEST(Merging, IsRefusedWhereItCannotBe) {
  Setting s = by_merging(3);
  s.options.algorithm = Algorithm::automatic;
  const auto errors = run_ranks(s, [](Communicator& c) {
    Buffer b(c, 100000);
    AllreduceRequest r = b.request();
    r.algorithm = Algorithm::merging;
    r.block_elems = 5000;
    EXPECT_THAT(error_of([&] { (void)c.allreduce(r); }).second,
                StartsWith("allreduce: algorithm merging is for tensors of single elements or small blocks"));
    r.block_elems = 1;
    r.wire_type = WireType::float16;
    EXPECT_EQ(error_of([&] { (void)c.allreduce(r); }).second,
              "allreduce: algorithm merging is not for values that travel in another type");
    r.wire_type = WireType::as_is;
    c.allreduce(r).wait();
  });
  EXPECT_THAT(errors, Each(""));
  s = quick(2, 1);
  s.options.algorithm = Algorithm::merging;
  EXPECT_THAT(run_ranks(s, [](Communicator&) {}), Each(HasSubstr("there are dedicated aggregators")));
}

// Four ranks add floats in another order by merging, so that is not chosen where nobody asks for it.
TEST(Merging, IsNotChosenWhereItChangesTheBits) {
  Setting s = by_merging(4);
  s.options.algorithm = Algorithm::automatic;
  const Problem p{.count = 60001, .block = 1, .ranks = 4};
  const Expected expected = make_expected(p);
  ASSERT_NE(first_difference(expected.data, expected_of(p).data), -1) << "the orders differ";
  const auto errors = run_ranks(s, [&](Communicator& c) { run_one(c, p, expected, Form::in_place); });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
