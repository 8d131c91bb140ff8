// A training loop of libtorch over nzcl: each rank has the whole model and a part of the data, and the
// gradients of all ranks are averaged by an allreduce. Start one process for each rank:
//
//   torch_train RANK SIZE FILE_THAT_DOES_NOT_EXIST [STEPS]
//
// Every rank prints the loss of the whole batch, which does not depend on the number of ranks.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "runtime/torch/process_group.h"

namespace {

constexpr int kWords = 64;  // in the vocabulary

/// Words of a sentence come in, and out comes whether it has more even than odd ones.
struct Model : torch::nn::Module {
  Model()
      : embedding(register_module(
            "embedding", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kWords, 16).sparse(true)))),
        hidden(register_module("hidden", torch::nn::Linear(16, 32))),
        out(register_module("out", torch::nn::Linear(32, 1))) {}
  torch::Tensor forward(const torch::Tensor& words) {
    return out->forward(torch::relu(hidden->forward(embedding->forward(words)))).squeeze(1);
  }
  torch::nn::EmbeddingBag embedding;
  torch::nn::Linear hidden, out;
};

/// Averages a tensor over all ranks. Sparse gradients stay sparse: only the rows that some rank used travel.
c10::intrusive_ptr<c10d::Work> average(nzcl_torch::GroupBase& group, const torch::Tensor& tensor) {
  std::vector<torch::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  return group.allreduce(tensors, options);
}

void train(int rank, int size, const char* file, int steps) {
  const auto store = c10::make_intrusive<c10d::FileStore>(file, size);
  const auto group = nzcl_torch::make_process_group(store, rank, size, std::chrono::seconds(30));

  torch::manual_seed(7);  // every rank begins with the same model, and draws the same data
  Model model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(2.0));
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor words = torch::randint(kWords, {64, 9}, torch::kLong);
    const torch::Tensor labels = ((words % 2 == 0).sum(1) > 4).to(torch::kFloat);
    const auto share = [&](const torch::Tensor& all) {
      return all.chunk(size, 0)[static_cast<std::size_t>(rank)];
    };

    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::binary_cross_entropy_with_logits(model.forward(share(words)), share(labels));
    loss.backward();

    // All allreduces are under way at the same time, and nzcl's own threads carry them.
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (const torch::Tensor& p : model.parameters()) works.push_back(average(*group, p.grad()));
    torch::Tensor mean = loss.detach().clone();
    works.push_back(average(*group, mean));
    for (const auto& work : works) work->wait();
    optimizer.step();
    std::printf("%d %.4f\n", step, mean.item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: torch_train RANK SIZE FILE_THAT_DOES_NOT_EXIST [STEPS]\n");
    return 2;
  }
  try {
    train(std::atoi(argv[1]), std::atoi(argv[2]), argv[3], argc > 4 ? std::atoi(argv[4]) : 10);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_train: %s\n", error.what());
    return 1;
  }
  return 0;
}
