// Allreduces by doubling, compared with a plain sum and, bit by bit, with the same ones pushed to owners.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

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

/// Nothing here may need the timeout to end.
Setting patient(int ranks, int dedicated = 0) {
  Setting s = quick(ranks, dedicated);
  s.options.timeout_s = 3600;
  return s;
}

Setting by_doubling(int ranks, int lanes = 1, const char* transport = "loopback") {
  Setting s = patient(ranks);
  s.transport = transport;
  s.options.lanes = lanes;
  s.options.algorithm = Algorithm::doubling;
  return s;
}

class DoublingOfRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(DoublingOfRanksTest, EveryTypeAndOperation) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      Problem p{.type = static_cast<DataType>(type),
                .op = static_cast<ReduceOp>(op),
                .count = 301,
                .block = 16,
                .ranks = GetParam()};
      problems.emplace_back(p, make_expected(p));
    }
  }
  const auto errors = run_ranks(by_doubling(GetParam()), [&](Communicator& c) {
    for (const auto& [p, expected] : problems) run_one(c, p, expected, Form::in_place);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(DoublingOfRanksTest, EverySizeSparsityAndForm) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (const std::uint64_t count : {0, 1, 97, 256, 257, 700, 1999, 20011}) {  // the last ones are pushed
    for (const Sparsity sparsity : kSparsities) {
      for (const std::uint64_t block : {1, 16, 256}) {
        Problem p{.count = count, .block = block, .sparsity = sparsity, .ranks = GetParam()};
        problems.emplace_back(p, make_expected(p));
      }
    }
  }
  const auto errors = run_ranks(by_doubling(GetParam(), 2), [&](Communicator& c) {
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
TEST_P(DoublingOfRanksTest, StreamsAndPackedResults) {
  const int ranks = GetParam();
  const auto errors = run_ranks(by_doubling(ranks), [&](Communicator& c) {
    for (const std::uint64_t block : {1, 8}) {
      for (const Sparsity sparsity : kSparsities) {
        const Problem p{.count = 403, .block = block, .sparsity = sparsity, .ranks = ranks};
        const Expected expected = make_expected(p);
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

// Small and large, by doubling and pushed, all at once.
TEST_P(DoublingOfRanksTest, ManyInFlight) {
  constexpr int kInFlight = 60;
  const auto errors = run_ranks(by_doubling(GetParam(), 2), [&](Communicator& c) {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<Work> works;
    for (int i = 0; i < kInFlight; ++i) {
      constexpr std::array<std::size_t, 4> kCounts{1, 200, 30000, 700};
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

INSTANTIATE_TEST_SUITE_P(Ranks, DoublingOfRanksTest, ::testing::Values(2, 3, 4, 5, 6, 7, 8, 9));

TEST(Doubling, TakesAMessageForEachRound) {
  for (const auto& [ranks, rounds] : {std::pair{2, 1u}, {3, 2u}, {5, 3u}, {8, 3u}, {9, 4u}}) {
    const auto errors = run_ranks(by_doubling(ranks), [&, n = rounds](Communicator& c) {
      Buffer b(c, 100);
      for (int i = 0; i < 5; ++i) c.allreduce(b.request()).wait();  // fewer than credits go back for
      EXPECT_EQ(c.statistics().messages_sent, 5 * n);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Doubling, GivesTheBitsOfThePush) {
  const auto errors = run_ranks(patient(5), [](Communicator& c) {
    for (unsigned seed = 1; seed < 20; ++seed) {
      const Problem p{.op = seed % 2 ? ReduceOp::sum : ReduceOp::avg,
                      .count = 500 + seed,
                      .block = 1 + seed % 7,
                      .sparsity = Sparsity::random,
                      .ranks = 5,
                      .seed = seed};
      auto pushed = make_input(p, c.rank()), doubled = pushed;
      const auto a = c.register_buffer(pushed.data(), pushed.size());
      const auto b = c.register_buffer(doubled.data(), doubled.size());
      AllreduceRequest r{.input = pushed.data(),
                         .output = pushed.data(),
                         .count = p.count,
                         .op = p.op,
                         .block_elems = p.block,
                         .algorithm = Algorithm::push};
      c.allreduce(r).wait();
      r.input = r.output = doubled.data();
      r.algorithm = Algorithm::doubling;
      c.allreduce(r).wait();
      EXPECT_EQ(first_difference(pushed, doubled), -1) << p.text();
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Doubling, StatisticsSayWhatWasTaken) {
  Setting s = patient(4);
  s.options.sum_order = SumOrder::any;
  const auto errors = run_ranks(s, [](Communicator& c) {
    const auto taken = [&](std::uint64_t count, std::uint64_t block, Algorithm asked) {
      Buffer b(c, count);
      AllreduceRequest r = b.request();
      r.block_elems = block;
      r.algorithm = asked;
      Work work = c.allreduce(r);
      work.wait();
      return work.statistics().algorithm;
    };
    for (const Algorithm asked : {Algorithm::push, Algorithm::doubling, Algorithm::merging})
      EXPECT_EQ(taken(300, 1, asked), asked) << name_of(asked);
    EXPECT_EQ(taken(1 << 20, 256, Algorithm::automatic), Algorithm::push) << "blocks that no other one takes";
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Doubling, OverEveryTransport) {
  for (const char* transport : {"cma", "shm", "tcp"}) {
    const auto errors = run_ranks(by_doubling(3, 1, transport), [&](Communicator& c) {
      for (const std::uint64_t count : {1, 300, 2000}) {
        const Problem p{.count = count, .block = 16, .ranks = 3};
        const Expected expected = make_expected(p);
        for (int i = 0; i < 20; ++i) run_one(c, p, expected, Form::in_place);
      }
    });
    EXPECT_THAT(errors, Each("")) << transport;
  }
}

TEST(Doubling, ARefusalFailsTheOperationAndNothingElse) {
  for (const int ranks : {2, 3, 5, 8}) {
    const auto errors = run_ranks(by_doubling(ranks), [&](Communicator& c) {
      Buffer b(c, 300);
      for (int i = 0; i < 40; ++i) {
        AllreduceRequest r = b.request();
        const int refuser = i % c.size();
        if (i % 2 == 0 && c.rank() == refuser) r.input = nullptr;
        const std::string text = error_of([&] { c.allreduce(r).wait(); }).second;
        if (i % 2 != 0) {
          EXPECT_EQ(text, "");
        } else if (c.rank() == refuser) {
          EXPECT_THAT(text, StartsWith("allreduce: input is null"));
        } else {
          EXPECT_EQ(text, "operation " + std::to_string(i) + ": rank " + std::to_string(refuser) +
                              " refused its request: input is null");
        }
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Doubling, RanksThatDisagreeFindOut) {
  const std::vector<std::function<void(AllreduceRequest&)>> changes{
      [](AllreduceRequest& r) { r.algorithm = Algorithm::push; },
      [](AllreduceRequest& r) { r.op = ReduceOp::max; },
      [](AllreduceRequest& r) { r.tag = 9; },
      [](AllreduceRequest& r) { r.expected_density = 0.5; },
      [](AllreduceRequest& r) { r.count = 20000; },  // which is pushed, and has many slices
      [](AllreduceRequest& r) { r.count = 1; }};
  for (const auto& change : changes) {
    for (const int lanes : {1, 3}) {
      for (int odd = 0; odd < 4; ++odd) {
        const auto errors = run_ranks(by_doubling(4, lanes), [&](Communicator& c) {
          Buffer b(c, 20000);
          AllreduceRequest r = b.request();
          r.count = 300;
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

TEST(Doubling, WhoDoesNotJoinIsNamed) {
  for (int absent = 0; absent < 5; ++absent) {
    Setting s = by_doubling(5);
    s.options.timeout_s = 1;
    const auto errors = run_ranks(s, [&](Communicator& c) {
      Buffer b(c, 300);
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

TEST(Doubling, IsRefusedWhereItCannotBe) {
  const auto errors = run_ranks(patient(3), [](Communicator& c) {
    Buffer b(c, 20000);
    AllreduceRequest r = b.request();
    r.algorithm = Algorithm::doubling;
    EXPECT_THAT(
        error_of([&] { (void)c.allreduce(r); }).second,
        AllOf(StartsWith("allreduce: algorithm doubling is for at most "), HasSubstr("count is 20000")));
    r.algorithm = Algorithm::switch_;
    EXPECT_THAT(error_of([&] { (void)c.allreduce(r); }).second,
                HasSubstr("algorithm switch is for a whole communicator"));
    r.algorithm = static_cast<Algorithm>(9);
    EXPECT_EQ(error_of([&] { (void)c.allreduce(r); }).second, "allreduce: algorithm 9 does not exist");
    r.algorithm = Algorithm::automatic;
    c.allreduce(r).wait();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Doubling, IsRefusedWithDedicatedAggregators) {
  Setting s = patient(2, 1);
  const auto errors = run_ranks(s, [](Communicator& c) {
    Buffer b(c, 100);
    AllreduceRequest r = b.request();
    r.algorithm = Algorithm::doubling;
    EXPECT_THAT(error_of([&] { (void)c.allreduce(r); }).second, HasSubstr("there are dedicated aggregators"));
  });
  EXPECT_THAT(errors, Each(""));
  s.options.algorithm = Algorithm::doubling;
  EXPECT_THAT(run_ranks(s, [](Communicator&) {}), Each(HasSubstr("there are dedicated aggregators")));
}

}  // namespace
}  // namespace nzcl::test
