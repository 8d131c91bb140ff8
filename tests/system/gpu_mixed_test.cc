// Operations of which some memory is on a GPU and some on the host: on the same rank, and on different ones.
#include <gtest/gtest.h>

#include <vector>

#include "tests/system/run_on_gpu.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

class GpuMixed : public testing::TestWithParam<Where> {};

/// Every rank has another mix than its neighbour, and another one in the next operation.
Sides mix(std::size_t turn, int rank) { return kMixes[(turn + static_cast<std::size_t>(rank)) % 4]; }

TEST_P(GpuMixed, Allreduce) {
  const Where& where = GetParam();
  std::vector<Problem> problems;
  unsigned seed = 1;
  for (const std::uint64_t block : {1, 16, 256, 20000}) {
    for (const std::uint64_t count : {std::uint64_t{7}, std::uint64_t{100003}}) {
      for (const Sparsity sparsity : kSparsities) {
        problems.push_back(
            {.count = count, .block = block, .sparsity = sparsity, .ranks = where.ranks, .seed = seed++});
      }
    }
  }
  std::vector<Expected> expected;
  for (const Problem& p : problems) expected.push_back(make_expected(p));
  const auto errors = run_ranks(where.setting(), [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    for (std::size_t i = 0; i < problems.size(); ++i)
      run_one_on_gpu(c, on, problems[i], expected[i], static_cast<Form>(i / 4 % 4), i % 3 == 0,
                     mix(i, c.rank()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(GpuMixed, Collectives) {
  const Where& where = GetParam();
  std::vector<Call> calls;
  unsigned turn = 0;
  for (const Kind kind : kKinds) {
    for (const std::uint64_t block : {1, 256, 9001}) {
      for (const std::uint64_t count : {5, 30011}) {
        for (const Sparsity sparsity : kSparsities) {
          const Problem p{.type = DataType::int32,
                          .count = count,
                          .block = block,
                          .sparsity = sparsity,
                          .ranks = where.ranks,
                          .seed = ++turn};
          calls.push_back(make_call(kind, static_cast<int>(turn) % where.ranks, p, turn % 5 == 0));
        }
      }
    }
  }
  const auto errors = run_ranks(where.setting(), [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    for (std::size_t i = 0; i < calls.size(); ++i)
      run_collective_on_gpu(c, on, calls[i], static_cast<Form>(i / 4 % 4), i % 3 == 0, mix(i, c.rank()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(Places, GpuMixed,
                         testing::Values(Where{"loopback", 1}, Where{"loopback", 4, 0, 2},
                                         Where{"loopback", 3, 1}, Where{"shm", 3}, Where{"tcp", 3},
                                         Where{"cma", 3}),
                         [](const auto& place) { return place.param.text(); });

/// Tiles, which the lanes read while they send them, and what they merge.
TEST(GpuMixedLarge, EveryAlgorithmTakesEveryMix) {
  for (const Algorithm algorithm : {Algorithm::push, Algorithm::doubling, Algorithm::merging}) {
    const std::uint64_t count = algorithm == Algorithm::doubling ? 1000 : 1000003;
    const Problem p{.type = DataType::int32, .count = count, .block = 16, .ranks = 3};
    const Expected expected = make_expected(p);
    const auto errors = run_ranks({.ranks = 3, .options = {}}, [&](Communicator& c) {
      OnGpu on(static_cast<unsigned>(c.rank()) + 1);
      for (std::size_t i = 0; i < 8; ++i)
        run_one_on_gpu(c, on, p, expected, Form::out_of_place, i % 3 == 0, mix(i, c.rank()), algorithm);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace nzcl::test
