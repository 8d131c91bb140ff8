// DistributedDataParallel of a model whose parameters are in memory that the host cannot touch: an embedding,
// whose gradient is sparse, and dense weights. c10d::Reducer is what Python's class of that name calls.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <vector>

#include "runtime/torch/bucket_hook.h"
#include "tests/torch/device_ranks.h"

namespace nzcl::test {
namespace {

constexpr std::int64_t kWords = 500, kWidth = 24, kBatch = 60;

/// embedding(words) * weights + bias, summed. Its gradients are whole numbers.
struct Model {
  at::Tensor table, weights, bias;

  explicit Model(const c10::Device& device) {
    const auto parameter = [&](at::IntArrayRef sizes, int seed) {
      const at::Tensor values = (at::arange(at::empty(sizes).numel(), at::kLong).view(sizes) * seed) % 5 - 2;
      return values.to(at::kFloat).to(device).set_requires_grad(true);
    };
    table = parameter({kWords, kWidth}, 3);
    weights = parameter({kWidth}, 7);
    bias = parameter({kBatch, kWidth}, 2);
  }
  Tensors parameters() const { return {table, weights, bias}; }
  at::Tensor loss(const at::Tensor& words) const {
    return (at::embedding(table, words, -1, false, true) * weights + bias).sum();
  }
  void backward(const at::Tensor& words) const {
    for (at::Tensor t : parameters()) t.mutable_grad() = at::Tensor();
    torch::autograd::backward({loss(words)}, {at::ones({}).to(table.device())});
  }
};

/// The words of a rank's batch, some of them several times.
at::Tensor words_of(int rank, int step) {
  return (at::arange(kBatch, at::kLong) * (17 + step) + 31 * rank) % (kWords / (2 + step));
}

/// As Python's class makes it: a bucket for dense gradients, and one of its own for each sparse one.
std::unique_ptr<c10d::Reducer> reducer_of(const Model& model, GroupBase& group) {
  const std::vector<bool> sparse{true, false, false};
  constexpr std::size_t kBucketBytes = 1 << 20;
  auto [buckets, bytes] =
      c10d::compute_bucket_assignment_by_size(model.parameters(), {kBucketBytes, kBucketBytes}, sparse);
  std::ranges::reverse(buckets);
  std::ranges::reverse(bytes);
  return std::make_unique<c10d::Reducer>(
      model.parameters(), buckets, bytes, c10::intrusive_ptr<GroupBase>::reclaim_copy(&group), sparse,
      kBucketBytes, false, false, std::unordered_map<std::size_t, std::string>(), kBucketBytes);
}

/// Does some steps, and compares every gradient with the average of those that the host computes for each
/// rank.
void train(Rank& rank, const Model& model, c10d::Reducer& reducer) {
  for (int step = 0; step < 4; ++step) {
    reducer.rebuild_buckets();
    reducer.prepare_for_forward();
    reducer.prepare_for_backward({});
    model.backward(words_of(rank.number, step).to(rank.device));
    // Autograd's threads work in the default stream. Only for CUDA's own devices, callers' streams wait for
    // it.
    emulated_gpu(rank.number).synchronize(nullptr);
    Tensors expected;
    for (int r = 0; r < rank.size; ++r) {
      const Model host(at::kCPU);
      host.backward(words_of(r, step));
      for (std::size_t i = 0; i < 3; ++i) {
        at::Tensor gradient = host.parameters()[i].grad().to_dense().to(at::kDouble) / rank.size;
        r == 0 ? expected.push_back(gradient) : void(expected[i] += gradient);
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor gradient = model.parameters()[i].grad();
      EXPECT_EQ(gradient.device(), rank.device);
      EXPECT_EQ(gradient.is_sparse(), i == 0);
      at::Tensor found = gradient.is_sparse()
                             ? at::_sparse_coo_tensor_unsafe(gradient._indices().cpu(),
                                                             gradient._values().cpu(), gradient.sizes())
                                   .to_dense()
                             : gradient.cpu();
      EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected[i], 1e-6)) << "step " << step << ", " << i;
    }
  }
}

class TorchDeviceDdp : public testing::TestWithParam<int> {};

TEST_P(TorchDeviceDdp, AveragesSparseAndDenseGradients) {
  expect_success(GetParam(), [](Rank& rank) {
    const Model model(rank.device);
    const auto reducer = reducer_of(model, rank.group);
    train(rank, model, *reducer);
  });
}

TEST_P(TorchDeviceDdp, WithTheHook) {
  expect_success(GetParam(), [](Rank& rank) {
    const Model model(rank.device);
    const auto reducer = reducer_of(model, rank.group);
    const auto group = c10::intrusive_ptr<GroupBase>::reclaim_copy(&rank.group);
    reducer->register_comm_hook(nzcl_torch::comm_hook(
        std::make_shared<nzcl_torch::BucketHook>(group, nzcl_torch::HookOptions{}, model.parameters())));
    train(rank, model, *reducer);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TorchDeviceDdp, testing::Values(1, 2, 3), testing::PrintToStringParamName());

}  // namespace
}  // namespace nzcl::test
