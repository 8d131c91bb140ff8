// Sparse streams of which values, indices or the result are in memory that the host cannot touch: every
// result is compared with that of the same request in the host's memory, bit by bit.
#include <gtest/gtest.h>

#include <atomic>
#include <tuple>

#include "tests/system/by_hierarchy.h"
#include "tests/system/gpu_streams.h"
#include "tests/system/gpu_tensor.h"
#include "tests/system/on_gpu.h"
#include "tests/system/ranks.h"
#include "tests/system/where.h"

namespace nzcl::test::streams {
namespace {

/// What of a request is on a GPU.
struct OnIt {
  bool values = true, indices = true, result = true;
};

/// What a request came to.
struct Outcome {
  std::vector<std::byte> values, indices;
  std::vector<std::int64_t> packed_indices;
  std::vector<std::uint64_t> bits;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(Work& work, std::vector<std::byte> values, std::vector<std::byte> indices) {
  const auto packed = work.packed_indices();
  const auto bits = work.union_bitmap();
  return {std::move(values), std::move(indices), {packed.begin(), packed.end()}, {bits.begin(), bits.end()}};
}

Outcome run_on_host(Communicator& communicator, const Case& c) {
  List list = make_list(c, communicator.rank());
  Room room(c);
  list.values.resize(std::max<std::size_t>(list.values.size(), 1));
  const auto v = communicator.register_buffer(list.values.data(), list.values.size());
  const auto o = communicator.register_buffer(room.values.data(), room.values.size());
  SparseAllreduceRequest r = request_of(c, list);
  set_result(r, c, room.values.data(), room.indices.data());
  Work work = communicator.allreduce_sparse(r);
  work.wait();
  return outcome_of(work, room.values, room.indices);
}

/// With `in_stream`, the result is read behind enqueue_wait(), and not after wait().
Outcome run_on_gpu(Communicator& communicator, OnGpu& on, const Case& c, const OnIt& on_it, bool in_stream) {
  List list = make_list(c, communicator.rank());
  Room room(c);
  list.values.resize(std::max<std::size_t>(list.values.size(), 1));
  const auto v = communicator.register_buffer(list.values.data(), list.values.size());
  const auto o = communicator.register_buffer(room.values.data(), room.values.size());
  AnyTensor values(communicator, on, list.values, true), indices(communicator, on, list.indices, true);
  AnyTensor result(communicator, on, room.values, true), numbers(communicator, on, room.indices, true);
  AnyTensor count(communicator, on, std::vector<std::byte>(8, std::byte{0x33}), true);
  SparseAllreduceRequest r = request_of(c, list);
  if (on_it.values) r.values = values.data();
  if (on_it.indices) r.indices = {indices.data(), list.blocks, c.index_type};
  if (on_it.result) {
    set_result(r, c, result.data(), numbers.data());
    if (c.result == Result::packed) r.packed_count = reinterpret_cast<std::uint64_t*>(count.data());
  } else {
    set_result(r, c, room.values.data(), room.indices.data());
  }
  r.stream = on.stream();
  Work work = communicator.allreduce_sparse(r);
  if (in_stream) {
    work.enqueue_wait(on.stream());
  } else {
    work.wait();
  }
  std::vector<std::byte> there = result.read(), there_indices = numbers.read(), counted = count.read();
  work.wait();
  if (on_it.result && c.result == Result::packed) {
    std::uint64_t blocks = 0;
    std::memcpy(&blocks, counted.data(), sizeof blocks);
    EXPECT_EQ(blocks, work.packed_indices().size()) << c.text();
  }
  return on_it.result ? outcome_of(work, there, there_indices) : outcome_of(work, room.values, room.indices);
}

/// Requests that have nothing on a GPU have no stream.
bool is_anything(const Communicator& communicator, const Case& c, const OnIt& on_it) {
  const bool list = make_list(c, communicator.rank()).blocks > 0;
  return on_it.result || on_it.values || (list && on_it.indices);
}

void compare(Communicator& communicator, OnGpu& on, const Case& c, const OnIt& on_it, bool in_stream) {
  const Outcome expected = run_on_host(communicator, c);
  const Outcome found = is_anything(communicator, c, on_it)
                            ? run_on_gpu(communicator, on, c, on_it, in_stream)
                            : run_on_host(communicator, c);
  EXPECT_EQ(first_difference(found.values, expected.values), -1) << c.text();
  EXPECT_TRUE(found == expected) << c.text() << ", on it: " << on_it.values << on_it.indices << on_it.result
                                 << ", rank " << communicator.rank();
}

constexpr IndexType kIndexes[] = {IndexType::int32, IndexType::uint32, IndexType::int64};
constexpr OnIt kPlaces[] = {{true, true, true},   {true, false, true}, {false, true, true},
                            {false, false, true}, {true, true, false}, {false, true, false},
                            {true, false, false}};

using Ran = std::tuple<Where, DataType>;
class GpuStreams : public testing::TestWithParam<Ran> {};

TEST_P(GpuStreams, HaveTheBitsOfTheHosts) {
  const auto& [where, type] = GetParam();
  const auto errors = run_ranks(where.setting(), [&, type = type](Communicator& communicator) {
    OnGpu on(static_cast<unsigned>(communicator.rank()) + 1);
    unsigned i = 0;
    for (const std::uint64_t block : {1, 3, 16, 256, 1000}) {
      for (const std::uint64_t count : {std::uint64_t{1}, block * 65 + 1, std::uint64_t{70001}}) {
        for (const Order order : {Order::ascending, Order::any, Order::with_duplicates}) {
          for (const Result result : {Result::dense, Result::packed}) {
            const Case c{
                .type = type,
                .op = type == DataType::uint8 ? ReduceOp::max : static_cast<ReduceOp>(i % kReduceOps),
                .count = count,
                .block = block,
                .index_type = kIndexes[i % 3],
                .order = order,
                .density = i % 7 == 0   ? 0
                           : i % 4 == 0 ? 0.6
                                        : 0.05,
                .result = result,
                .seed = ++i};
            compare(communicator, on, c, kPlaces[i % 7], i % 2 == 0);
          }
        }
      }
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

std::string name_of_run(const testing::TestParamInfo<Ran>& info) {
  return std::get<0>(info.param).text() + "_" + std::string(nzcl::name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuStreams,
                         testing::Combine(testing::Values(Where{"loopback", 1}, Where{"loopback", 3}),
                                          testing::Values(DataType::float32, DataType::float64,
                                                          DataType::float16, DataType::bfloat16,
                                                          DataType::int32, DataType::int64, DataType::uint8)),
                         name_of_run);
INSTANTIATE_TEST_SUITE_P(Transports, GpuStreams,
                         testing::Combine(testing::Values(Where{"loopback", 4, 0, 2}, Where{"loopback", 2, 1},
                                                          Where{"shm", 2}, Where{"tcp", 3}, Where{"cma", 2}),
                                          testing::Values(DataType::float32)),
                         name_of_run);

/// Ranks whose streams are on a GPU, in part or not at all, in every way in which ranks exchange.
TEST(GpuStreamsTogether, RanksMayHaveThemAnywhere) {
  for (const Algorithm algorithm : {Algorithm::push, Algorithm::doubling, Algorithm::merging}) {
    for (const std::uint64_t block : {1, 64}) {
      for (const Result result : {Result::dense, Result::packed}) {
        const Case c{.count = algorithm == Algorithm::doubling ? std::uint64_t{700} : std::uint64_t{300007},
                     .block = block,
                     .index_type = IndexType::uint32,
                     .order = Order::any,
                     .result = result,
                     .algorithm = algorithm};
        const auto errors = run_ranks({.ranks = 4, .options = {}}, [&](Communicator& communicator) {
          OnGpu on;
          const Outcome expected = run_on_host(communicator, c);
          for (int round = 0; round < 3; ++round) {
            const int kind = (communicator.rank() + round) % 4;
            const Outcome found = kind == 0
                                      ? run_on_host(communicator, c)
                                      : run_on_gpu(communicator, on, c, kPlaces[kind * 2 - 1], round == 1);
            EXPECT_TRUE(found == expected) << c.text() << " rank " << communicator.rank();
          }
        });
        for (const std::string& error : errors) EXPECT_EQ(error, "");
      }
    }
  }
}

/// In two levels, other operations exchange what comes from a GPU.
TEST(GpuStreamsTogether, InAHierarchy) {
  for (const Hosts hosts : {Hosts{4, 2}, Hosts{5, 2}}) {
    const auto errors = run_ranks(by_hierarchy(hosts), [&](Communicator& communicator) {
      OnGpu on(static_cast<unsigned>(communicator.rank()) + 1);
      unsigned i = 0;
      for (const DataType type : {DataType::float32, DataType::bfloat16, DataType::int64}) {
        for (const std::uint64_t block : {1, 16, 1000}) {
          for (const std::uint64_t count : {std::uint64_t{1}, block * 65 + 1, std::uint64_t{300007}}) {
            for (const Order order : {Order::ascending, Order::any, Order::with_duplicates}) {
              for (const Result result : {Result::dense, Result::packed}) {
                const Case c{.type = type,
                             .op = i % 3 == 0 ? ReduceOp::avg : ReduceOp::sum,
                             .count = count,
                             .block = block,
                             .index_type = kIndexes[i % 3],
                             .order = order,
                             .density = i % 7 == 0 ? 0 : 0.1,
                             .result = result,
                             .seed = ++i};
                const auto place = (i + static_cast<unsigned>(communicator.rank())) % std::size(kPlaces);
                compare(communicator, on, c, kPlaces[place], i % 2 == 0);
              }
            }
          }
        }
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(GpuStreamsTogether, LargeOnes) {
  for (const Result result : {Result::dense, Result::packed}) {
    const Case c{.count = (4 << 20) + 77, .block = 1, .order = Order::with_duplicates, .result = result};
    const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
      OnGpu on;
      compare(communicator, on, c, {}, true);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// Blocks lie as far from one another as the request says, also where the tensor is shorter than one.
TEST(GpuStreamsTogether, OfATensorShorterThanABlock) {
  for (const Result result : {Result::dense, Result::packed}) {
    const Case c{
        .count = 110, .block = 1000, .order = Order::with_duplicates, .density = 1, .result = result};
    const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
      OnGpu on;
      compare(communicator, on, c, {}, true);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// Memory of the first operation of a size serves all later ones.
TEST(GpuStreamsTogether, NothingIsPinnedOnceWarm) {
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
    OnGpu on;
    std::size_t pieces = 0;
    for (int i = 0; i < 10; ++i) {
      const Case c{.count = 50000, .block = 1, .result = Result::packed};
      std::size_t before = on.gpu().pieces();
      run_on_gpu(communicator, on, c, {}, i % 2 == 0);
      pieces = on.gpu().pieces() - before;
      EXPECT_TRUE(i < 2 || pieces == 5u) << pieces;  // its own, which it does not free
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test::streams
