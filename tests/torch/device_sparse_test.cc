// Sparse tensors in memory that the host cannot touch. Every result is compared with a plain sum of what the
// ranks gave, and neither entries nor results may be copied to the host or from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/torch/bucket_hook.h"
#include "tests/torch/device_ranks.h"

namespace nzcl::test {
namespace {

using testing::HasSubstr;
using Op = c10d::ReduceOp;

/// What a rank has of a sparse tensor, on the host.
struct Entries {
  at::Tensor indices, values;
  at::Tensor on(const c10::Device& device, at::IntArrayRef sizes) const {
    return at::_sparse_coo_tensor_unsafe(indices.to(device), values.to(device), sizes,
                                         values.options().layout(at::kSparse).device(device));
  }
  /// The dense tensor in which equal indices mean a sum, in doubles.
  at::Tensor dense(at::IntArrayRef sizes) const {
    return at::_sparse_coo_tensor_unsafe(indices, values.to(at::kDouble), sizes).coalesce().to_dense();
  }
  /// Of the sparse dimensions alone: how often each block is there.
  at::Tensor counts(at::IntArrayRef sizes) const {
    const auto outside = sizes.slice(0, static_cast<std::size_t>(indices.size(0)));
    return at::_sparse_coo_tensor_unsafe(indices, at::ones({indices.size(1)}), outside).coalesce().to_dense();
  }
};

/// What all ranks have: whole numbers, so that sums have no rounding.
struct Problem {
  std::vector<std::int64_t> sizes;
  std::int64_t sparse_dims;
  at::ScalarType type = at::kFloat;
  Op::RedOpType op = Op::SUM;
  bool duplicates = true;
  std::function<std::int64_t(int rank)> entries = [](int rank) { return 20 + 7 * rank; };

  std::string text() const {
    return c10::str(c10::IntArrayRef(sizes), ", ", sparse_dims, " sparse, ", type, ", operation ",
                    static_cast<int>(op));
  }
  /// Of one rank: in no order, and some several times if there may be duplicates.
  Entries of(int rank) const {
    const std::int64_t n = entries(rank);
    std::vector<std::int64_t> inside{n};
    inside.insert(inside.end(), sizes.begin() + sparse_dims, sizes.end());
    const at::Tensor values =
        (at::arange(at::empty(inside).numel(), at::kLong).view(inside) * 5 + rank) % 7 + 1;
    std::int64_t blocks = 1;
    for (std::int64_t d = 0; d < sparse_dims; ++d) blocks *= sizes[static_cast<std::size_t>(d)];
    const std::int64_t among = duplicates ? std::max<std::int64_t>(blocks / 2, 1) : blocks;
    at::Tensor block = (at::arange(n, at::kLong) * 7919 + rank * 31) % among;
    const at::Tensor indices = at::empty({sparse_dims, n}, at::kLong);
    for (std::int64_t d = sparse_dims; d-- > 0;) {
      const std::int64_t size = sizes[static_cast<std::size_t>(d)];
      indices[d].copy_(at::remainder(block, size));
      block = at::div(block, size, "trunc");
    }
    return {indices, values.to(type)};
  }
  /// A rank that has no block counts as zeros, for MIN and MAX too.
  at::Tensor result(int ranks) const {
    at::Tensor all = of(0).dense(sizes);
    for (int r = 1; r < ranks; ++r) {
      const at::Tensor one = of(r).dense(sizes);
      all = op == Op::MIN ? at::minimum(all, one) : op == Op::MAX ? at::maximum(all, one) : all + one;
    }
    return op == Op::AVG ? all / ranks : all;
  }
  /// The coordinates that any rank has, in order.
  at::Tensor coordinates(int ranks) const {
    at::Tensor there = of(0).counts(sizes);
    for (int r = 1; r < ranks; ++r) there = there + of(r).counts(sizes);
    return at::nonzero(there).t().contiguous();
  }
};

/// Whether a tensor on a GPU is the result: its entries are those that any rank has, in order.
void expect_result(const at::Tensor& tensor, const Problem& problem, int ranks) {
  const std::string text = problem.text();
  ASSERT_TRUE(tensor.is_coalesced()) << text;
  ASSERT_EQ(tensor.sparse_dim(), problem.sparse_dims) << text;
  ASSERT_EQ(tensor.scalar_type(), problem.type) << text;
  const Entries found{tensor._indices().cpu(), tensor._values().cpu()};
  EXPECT_TRUE(at::equal(found.indices, problem.coordinates(ranks))) << text;
  const at::Tensor dense = found.dense(problem.sizes), expected = problem.result(ranks);
  EXPECT_TRUE(problem.op == Op::AVG ? at::allclose(dense, expected, 1e-6) : at::equal(dense, expected))
      << text;
}

/// The result of an allreduce on every rank, which no copy between host and GPU has a part in.
void expect_reduced(Rank& rank, const Problem& problem) {
  Tensors t{problem.of(rank.number).on(rank.device, problem.sizes)};
  c10d::AllreduceOptions options;
  options.reduceOp = problem.op;
  const int copies = copies_by_host(rank.number);
  rank.group.allreduce(t, options)->wait();
  EXPECT_EQ(copies_by_host(rank.number), copies) << problem.text();
  expect_result(t[0], problem, rank.size);
}

class TorchDeviceSparse : public testing::TestWithParam<int> {};

TEST_P(TorchDeviceSparse, EveryShape) {
  expect_success(GetParam(), [](Rank& rank) {
    expect_reduced(rank, {.sizes = {500}, .sparse_dims = 1});
    expect_reduced(rank, {.sizes = {300, 16}, .sparse_dims = 1});
    expect_reduced(rank, {.sizes = {100, 3, 5}, .sparse_dims = 1});
    expect_reduced(rank, {.sizes = {30, 40}, .sparse_dims = 2});
    expect_reduced(rank, {.sizes = {30, 7, 4}, .sparse_dims = 2});
    expect_reduced(rank, {.sizes = {9, 8, 7, 2}, .sparse_dims = 3});
    expect_reduced(rank, {.sizes = {1, 6, 1, 5}, .sparse_dims = 4});
    expect_reduced(rank, {.sizes = {1000, 900}, .sparse_dims = 2});
    expect_reduced(rank, {.sizes = {6, 5}, .sparse_dims = 0, .entries = [](int r) { return 1 + r; }});
  });
}

/// As a gradient of a large embedding: many entries, some of them several times.
TEST_P(TorchDeviceSparse, ManyEntries) {
  expect_success(GetParam(), [](Rank& rank) {
    expect_reduced(rank, {.sizes = {20000, 64}, .sparse_dims = 1, .entries = [](int r) { return 3000 + r; }});
    expect_reduced(rank, {.sizes = {200, 300}, .sparse_dims = 2, .entries = [](int) { return 25000; }});
  });
}

TEST_P(TorchDeviceSparse, EveryTypeAndOperation) {
  expect_success(GetParam(), [](Rank& rank) {
    for (const auto type :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte})
      for (const auto op : {Op::SUM, Op::MIN, Op::MAX})
        for (const bool duplicates : {false, true})
          expect_reduced(
              rank, {.sizes = {60, 10}, .sparse_dims = 1, .type = type, .op = op, .duplicates = duplicates});
    expect_reduced(rank, {.sizes = {60, 10}, .sparse_dims = 1, .op = Op::AVG});
  });
}

/// Int8 and int16 are reduced as int32.
TEST_P(TorchDeviceSparse, ConvertedTypes) {
  expect_success(GetParam(), [](Rank& rank) {
    for (const auto type : {at::kShort, at::kChar})
      expect_reduced(rank, {.sizes = {40, 30}, .sparse_dims = 2, .type = type});
  });
}

TEST_P(TorchDeviceSparse, RanksWithoutEntries) {
  expect_success(GetParam(), [](Rank& rank) {
    for (int with = 0; with < rank.size; ++with)
      expect_reduced(
          rank, {.sizes = {80, 6}, .sparse_dims = 1, .entries = [=](int r) { return r == with ? 30 : 0; }});
    expect_reduced(rank, {.sizes = {80, 6}, .sparse_dims = 1, .entries = [](int) { return 0; }});
  });
}

/// A tensor that was emptied has sparse dimensions only. It takes those of the others, if there are any.
TEST_P(TorchDeviceSparse, ATensorThatWasEmptied) {
  expect_success(GetParam(), [](Rank& rank) {
    const Problem problem{
        .sizes = {50, 4}, .sparse_dims = 1, .entries = [](int r) { return r == 0 ? 0 : 12; }};
    Tensors t{problem.of(rank.number).on(rank.device, problem.sizes)};
    if (rank.number == 0)
      t[0] = at::empty(problem.sizes, at::TensorOptions(at::kFloat).layout(at::kSparse).device(rank.device));
    rank.group.allreduce(t)->wait();
    if (rank.size > 1) return expect_result(t[0], problem, rank.size);
    EXPECT_TRUE(t[0].is_coalesced());
    EXPECT_EQ(t[0]._nnz(), 0);
  });
}

/// Works in flight together, with dense ones between them. Their input is what the caller's stream had
/// written by the time of the call. The result's memory is marked as used by that stream.
TEST_P(TorchDeviceSparse, WorksInTheOrderOfCallsAndStreams) {
  expect_success(GetParam(), [](Rank& rank) {
    std::vector<Problem> problems;
    std::vector<Tensors> sparse, dense;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 6; ++i)
      problems.push_back(
          {.sizes = {200 + i, 8}, .sparse_dims = 1, .entries = [=](int r) { return 20 + r * i; }});
    for (const Problem& problem : problems) {
      const at::Tensor kept = problem.of(rank.number).on(rank.device, problem.sizes);
      const at::Tensor values = at::empty_like(kept._values());
      sparse.push_back(
          {at::_sparse_coo_tensor_unsafe(kept._indices(), values, problem.sizes, kept.options())});
      dense.push_back({rank.part({3000}).to(rank.device)});
      values.copy_(kept._values());  // late, as all that emulated streams do
      works.push_back(rank.group.allreduce(sparse.back()));
      works.push_back(rank.group.allreduce(dense.back()));
    }
    for (const auto& work : works) work->wait();
    for (std::size_t i = 0; i < problems.size(); ++i) {
      expect_result(sparse[i][0], problems[i], rank.size);
      expect_equal(dense[i][0], rank.sum({3000}), "dense");
      EXPECT_TRUE(is_recorded(sparse[i][0]._values(), rank.stream));
      EXPECT_TRUE(is_recorded(sparse[i][0]._indices(), rank.stream));
    }
  });
}

/// The call returns although the stream has not come to it, and cannot before the host lets it.
TEST_P(TorchDeviceSparse, TheCallDoesNotWaitForTheStream) {
  expect_success(GetParam(), [](Rank& rank) {
    const Problem problem{.sizes = {300, 5}, .sparse_dims = 1};
    gpu::EmulatedGpu& gpu = emulated_gpu(rank.number);
    Tensors t{problem.of(rank.number).on(rank.device, problem.sizes)};
    const gpu::Flag go = gpu.take_flag();
    gpu.await(reinterpret_cast<gpu::Stream>(rank.stream.id()), go.device, go.value);
    const auto work = rank.group.allreduce(t);
    EXPECT_FALSE(work->isCompleted());
    go.raise_here();
    work->wait();
    expect_result(t[0], problem, rank.size);
  });
}

TEST_P(TorchDeviceSparse, FuturesHaveTheResult) {
  expect_success(GetParam(), [](Rank& rank) {
    const Problem problem{.sizes = {300, 5}, .sparse_dims = 1};
    Tensors t{problem.of(rank.number).on(rank.device, problem.sizes)};
    const auto work = rank.group.allreduce(t);
    const auto future = work->getFuture();
    future->wait();
    expect_result(future->value().toTensorVector().at(0), problem, rank.size);
    work->wait();
  });
}

/// What the hook, which DistributedDataParallel calls, makes of the sparse gradient of an embedding.
TEST_P(TorchDeviceSparse, TheHook) {
  expect_success(GetParam(), [](Rank& rank) {
    Problem problem{.sizes = {400, 16}, .sparse_dims = 1, .op = Op::AVG};
    const auto group = c10::intrusive_ptr<GroupBase>::reclaim_copy(&rank.group);
    const at::Tensor weights = at::empty(problem.sizes, at::TensorOptions(at::kFloat).device(rank.device));
    const auto hook = std::make_shared<nzcl_torch::BucketHook>(
        group, nzcl_torch::HookOptions{.compress = "adacomp:100+asis"}, Tensors{weights});
    for (int step = 0; step < 3; ++step) {
      problem.entries = [=](int r) { return r == 0 && step == 1 ? 0 : 25 + 10 * step + r; };
      const at::Tensor gradient = problem.of(rank.number).on(rank.device, problem.sizes);
      c10d::GradBucket bucket = bucket_of(gradient, weights);
      const auto future = hook->run(bucket);
      future->wait();
      expect_result(future->value().toTensor(), problem, rank.size);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TorchDeviceSparse, testing::Values(1, 2, 3),
                         testing::PrintToStringParamName());

/// Coordinates that are outside the tensor: torch does not look at those on a GPU, and nzcl finds them when
/// the stream has come to them.
TEST(TorchDeviceSparseErrors, WrongCoordinatesFailTheWorkOnAllRanks) {
  expect_success(3, [](Rank& rank) {
    const Problem problem{.sizes = {300, 5}, .sparse_dims = 1};
    Entries entries = problem.of(rank.number);
    if (rank.number == 1) entries.indices[0][3] = 300;
    Tensors wrong{entries.on(rank.device, problem.sizes)};
    const auto work = rank.group.allreduce(wrong);
    EXPECT_THAT([&] { work->wait(); }, testing::ThrowsMessage<std::exception>(
                                           testing::AllOf(HasSubstr("300"), HasSubstr("rank 1"))));
    expect_reduced(rank, problem);  // the group goes on
  });
}

TEST(TorchDeviceSparseErrors, TensorsThatDoNotFitFailTheWorkOnAllRanks) {
  expect_success(2, [](Rank& rank) {
    const Problem problem{.sizes = {300, 5}, .sparse_dims = 1};
    Problem other = problem;
    if (rank.number == 1) other.sizes = {300, 6};
    Tensors wrong{other.of(rank.number).on(rank.device, other.sizes)};
    EXPECT_THAT([&] { rank.group.allreduce(wrong)->wait(); },
                testing::ThrowsMessage<std::exception>(HasSubstr("shape, type or operation of rank 0")));
    expect_reduced(rank, problem);
  });
}

/// Nobody waits for ever: neither works, nor the streams of those that are left.
TEST(TorchDeviceSparseErrors, ARankThatIsGoneFailsTheOthersWorks) {
  std::atomic<int> ready{0};
  expect_success(3, [&](Rank& rank) {
    const Problem problem{.sizes = {300, 5}, .sparse_dims = 1};
    expect_reduced(rank, problem);
    ++ready;
    if (rank.number == 2) {
      while (ready < rank.size) std::this_thread::yield();
      return nzcl_torch::abort(rank.group, "rank 2 gives up");
    }
    Tensors t{problem.of(rank.number).on(rank.device, problem.sizes)};
    const auto work = rank.group.allreduce(t);
    EXPECT_THAT([&] { work->wait(); }, testing::ThrowsMessage<std::exception>(HasSubstr("rank 2 gives up")));
    emulated_gpu(rank.number).synchronize(reinterpret_cast<gpu::Stream>(rank.stream.id()));
  });
}

}  // namespace
}  // namespace nzcl::test
