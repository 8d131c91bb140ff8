// Combines transports, numbers of ranks and placements of aggregators with types, operations, sizes, kinds of
// sparsity and forms of call. Each result is compared with a plain sum.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tests/system/oracle.h"
#include "tests/system/run_one.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

class CombinationsTest : public ::testing::TestWithParam<Where> {
 protected:
  Setting setting() const {
    Setting s = GetParam().setting();
    s.options.tune.scan_threads = GetParam().lanes > 1 ? 1 : 0;
    return s;
  }
  void check_errors(const std::vector<std::string>& errors) {
    for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
  }
};

TEST_P(CombinationsTest, EveryTypeAndOperation) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      Problem p{.type = static_cast<DataType>(type),
                .op = static_cast<ReduceOp>(op),
                .count = 10007,
                .block = 64,
                .ranks = GetParam().ranks};
      problems.emplace_back(p, make_expected(p));
    }
  }
  check_errors(run_ranks(setting(), [&](Communicator& c) {
    for (const auto& [p, expected] : problems) run_one(c, p, expected, Form::in_place);
  }));
}

TEST_P(CombinationsTest, EverySizeSparsityAndForm) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (const std::uint64_t count : {0, 1, 97, 255, 256, 257, 4999, 120011}) {
    for (const Sparsity sparsity : kSparsities) {
      for (const std::uint64_t block : {1, 16, 256}) {
        if (block == 1 && count > 5000) continue;
        Problem p{.count = count, .block = block, .sparsity = sparsity, .ranks = GetParam().ranks};
        problems.emplace_back(p, make_expected(p));
      }
    }
  }
  check_errors(run_ranks(setting(), [&](Communicator& c) {
    int turn = 0;
    for (const auto& [p, expected] : problems) {
      run_one(c, p, expected, Form::in_place);
      run_one(c, p, expected, turn++ % 2 ? Form::out_of_place : Form::with_bitmap);
      if (p.sparsity == Sparsity::random) run_one(c, p, expected, Form::dense_flag);
    }
  }));
}

/// Blocks that are exchanged in tiles, of every type and operation in turn.
TEST_P(CombinationsTest, EverySizeOfSmallBlocks) {
  std::vector<std::pair<Problem, Expected>> problems;
  int turn = 0;
  for (const std::uint64_t block : {2, 3, 5, 8, 16, 33, 64, 100}) {
    for (int type = 0; type < kDataTypes; ++type, ++turn) {
      Problem p{.type = static_cast<DataType>(type),
                .op = static_cast<ReduceOp>(turn % kReduceOps),
                .count = 20011,
                .block = block,
                .sparsity = kSparsities[turn % 6],
                .ranks = GetParam().ranks};
      problems.emplace_back(p, make_expected(p));
    }
  }
  check_errors(run_ranks(setting(), [&](Communicator& c) {
    for (const auto& [p, expected] : problems) {
      run_one(c, p, expected, Form::in_place);
      run_one(c, p, expected, Form::out_of_place);
      run_one(c, p, expected, Form::with_bitmap);
    }
  }));
}

/// run_one() sets all bits behind the last block of a bitmap. Wherever tensors are cut, they count for
/// nothing.
TEST_P(CombinationsTest, BitmapsWithBitsBehindTheLastBlock) {
  struct Case {
    std::uint64_t count, block;
    Algorithm algorithm;
  };
  std::vector<Case> cases{{10000, 1, Algorithm::push},
                          {100010, 16, Algorithm::push},
                          {100010, 24, Algorithm::automatic},
                          {70001, 5000, Algorithm::push}};
  if (GetParam().dedicated == 0) {
    cases.push_back({200, 3, Algorithm::doubling});
    cases.push_back({100010, 16, Algorithm::merging});
    cases.push_back({65601, 1, Algorithm::merging});
  }
  std::vector<std::pair<Problem, Expected>> problems;
  for (const Case& c : cases) {
    const Problem p{.type = DataType::int32, .count = c.count, .block = c.block, .ranks = GetParam().ranks};
    ASSERT_NE(p.blocks() % 64, 0u) << "nothing lies behind the last block";
    problems.emplace_back(p, make_expected(p));
  }
  check_errors(run_ranks(setting(), [&](Communicator& c) {
    for (std::size_t i = 0; i < cases.size(); ++i)
      run_one(c, problems[i].first, problems[i].second, Form::with_bitmap, cases[i].algorithm);
  }));
}

TEST_P(CombinationsTest, BlocksLargerThanASlot) {
  Problem p{.count = 50021, .block = 9001, .sparsity = Sparsity::disjoint, .ranks = GetParam().ranks};
  const Expected expected = make_expected(p);
  check_errors(run_ranks(setting(), [&](Communicator& c) { run_one(c, p, expected, Form::in_place); }));
}

TEST_P(CombinationsTest, SparseBlocksDenseAndPacked) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (const Sparsity sparsity : kSparsities) {
    for (const std::uint64_t count : {1, 300, 60013}) {
      Problem p{.count = count, .block = 32, .sparsity = sparsity, .ranks = GetParam().ranks};
      problems.emplace_back(p, make_expected(p));
    }
  }
  check_errors(run_ranks(setting(), [&](Communicator& c) {
    for (const auto& [p, expected] : problems) {
      // The values are given in descending order of their indices, so that the order in the call differs from
      // the order in the tensor.
      const std::vector<std::byte> dense = make_input(p, c.rank());
      const std::uint64_t block_bytes = p.block * element_bytes(p.type);
      std::vector<std::int64_t> indices;
      std::vector<std::byte> values;
      for (std::uint64_t b = p.blocks(); b-- > 0;) {
        if (!holds(p, c.rank(), b)) continue;
        indices.push_back(static_cast<std::int64_t>(b));
        const std::uint64_t n = std::min(block_bytes, p.bytes() - b * block_bytes);
        values.insert(values.end(), dense.begin() + static_cast<long>(b * block_bytes),
                      dense.begin() + static_cast<long>(b * block_bytes + n));
        values.resize(indices.size() * block_bytes);
      }
      values.resize(std::max<std::size_t>(values.size(), 8));
      std::vector<std::byte> output(p.bytes(), std::byte{0x77});
      const auto v = c.register_buffer(values.data(), values.size());
      const auto o = c.register_buffer(output.data(), output.size());
      c.allreduce_sparse({.values = values.data(),
                          .indices = indices,
                          .count = p.count,
                          .block_elems = p.block,
                          .output = output.data()})
          .wait();
      EXPECT_EQ(first_difference(output, expected.data), -1) << p.text() << " dense result";

      const std::uint64_t capacity = std::max<std::uint64_t>(1, count_bits(expected.bits));
      std::vector<std::byte> packed(capacity * block_bytes);
      const auto k = c.register_buffer(packed.data(), packed.size());
      Work work = c.allreduce_sparse({.values = values.data(),
                                      .indices = indices,
                                      .count = p.count,
                                      .block_elems = p.block,
                                      .packed_values = packed.data(),
                                      .packed_capacity = capacity});
      work.wait();
      const auto found = work.packed_indices();
      ASSERT_EQ(found.size(), count_bits(expected.bits)) << p.text();
      for (std::size_t i = 0; i < found.size(); ++i) {
        const auto b = static_cast<std::uint64_t>(found[i]);
        ASSERT_TRUE(test_bit(std::span<const std::uint64_t>(expected.bits), b)) << p.text();
        ASSERT_TRUE(i == 0 || found[i - 1] < found[i]);
        const std::uint64_t n = std::min(block_bytes, p.bytes() - b * block_bytes);
        ASSERT_EQ(std::memcmp(packed.data() + i * block_bytes, expected.data.data() + b * block_bytes, n), 0)
            << p.text() << " block " << b;
      }
    }
  }));
}

TEST_P(CombinationsTest, ManyInFlightOfAllSizes) {
  constexpr int kOperations = 100;  // more operations than may be in flight
  std::vector<std::pair<Problem, Expected>> problems;
  for (int i = 0; i < kOperations; ++i) {
    Problem p{.count = static_cast<std::uint64_t>(i % 3 == 0 ? 20011 : 50 + i),
              .block = 16,
              .sparsity = kSparsities[i % 6],
              .ranks = GetParam().ranks,
              .seed = static_cast<unsigned>(i)};
    problems.emplace_back(p, make_expected(p));
  }
  check_errors(run_ranks(setting(), [&](Communicator& c) {
    std::vector<std::vector<std::byte>> buffers;
    std::vector<RegisteredBuffer> registered;
    std::vector<Work> works;
    for (const auto& [p, expected] : problems) {
      buffers.push_back(make_input(p, c.rank()));
      registered.push_back(c.register_buffer(buffers.back().data(), buffers.back().size()));
      works.push_back(c.allreduce({.input = buffers.back().data(),
                                   .output = buffers.back().data(),
                                   .count = p.count,
                                   .block_elems = p.block}));
    }
    for (std::size_t i = works.size(); i-- > 0;) {  // waits in another order than that of the calls
      works[i].wait();
      EXPECT_EQ(first_difference(buffers[i], problems[i].second.data), -1) << problems[i].first.text();
    }
    c.barrier();
  }));
}

// Each operation is one slice, so that only one of several lanes has a part in it.
TEST_P(CombinationsTest, TinyOnesOneAfterAnother) {
  constexpr int kOperations = 500;
  check_errors(run_ranks(setting(), [&](Communicator& c) {
    std::vector<float> data(200);
    const auto registered = c.register_buffer(data.data(), data.size() * sizeof(float));
    for (int i = 0; i < kOperations; ++i) {
      const std::uint64_t count = i % 2 ? 200 : 4;
      std::fill_n(data.begin(), count, static_cast<float>(c.rank() + i));
      c.allreduce({.input = data.data(), .output = data.data(), .count = count, .block_elems = 4}).wait();
      const int n = c.size();
      const auto sum = static_cast<float>(n * i + n * (n - 1) / 2);
      ASSERT_TRUE(std::all_of(data.begin(), data.begin() + static_cast<long>(count),
                              [&](float v) { return v == sum; }))
          << "operation " << i;
    }
  }));
}

// Owners write results to where they belong in each rank's memory, which is the caller's and not shared.
// There are more bytes than a transport has under way at a time.
TEST_P(CombinationsTest, ResultsThatAreWrittenToTheirPlaces) {
  Setting s = setting();
  s.options.tune.direct_bytes = 256;
  const Problem p{.count = 700'003, .block = 256, .ranks = GetParam().ranks};
  const Expected expected = make_expected(p);
  check_errors(run_ranks(s, [&](Communicator& c) {
    auto input = make_input(p, c.rank());
    std::vector<std::byte> output(input.size());
    const auto a = c.register_buffer(input.data(), input.size());
    const auto b = c.register_buffer(output.data(), output.size());
    for (int round = 0; round < 3; ++round) {
      std::fill(output.begin(), output.end(), std::byte{0x5a});
      c.allreduce({.input = input.data(), .output = output.data(), .count = p.count, .block_elems = p.block})
          .wait();
      ASSERT_EQ(first_difference(output, expected.data), -1) << "round " << round;
    }
  }));
}

std::vector<Where> places() {
  std::vector<Where> all;
  for (const int ranks : {1, 2, 3, 5, 8}) all.push_back({"loopback", ranks});
  for (const char* transport : {"cma", "shm", "tcp"}) {
    for (const int ranks : {1, 2, 3, 5, 8}) all.push_back({transport, ranks});
  }
  all.push_back({"loopback", 1, 1});
  all.push_back({"loopback", 3, 1});
  all.push_back({"loopback", 3, 2});
  all.push_back({"loopback", 2, 5});
  all.push_back({"loopback", 3, 0, 2});
  all.push_back({"loopback", 2, 2, 2});
  all.push_back({"shm", 3, 0, 2});
  all.push_back({"libfabric-shm", 3, 0, 2});
  all.push_back({"tcp", 2, 0, 2});
  return all;
}

std::string name_of_place(const testing::TestParamInfo<Where>& info) { return info.param.text(); }
INSTANTIATE_TEST_SUITE_P(Places, CombinationsTest, ::testing::ValuesIn(places()), name_of_place);

}  // namespace
}  // namespace nzcl::test
