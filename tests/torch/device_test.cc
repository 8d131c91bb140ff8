// The process group with tensors in memory that the host cannot touch. Ranks are threads, each with an
// emulated GPU, and every result is compared with what libtorch computes on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "runtime/torch/bucket_hook.h"
#include "tests/torch/device_ranks.h"

namespace nzcl::test {
namespace {

using testing::HasSubstr;

class TorchDevice : public testing::TestWithParam<int> {};

TEST_P(TorchDevice, AllreduceOfEveryType) {
  expect_success(GetParam(), [](Rank& rank) {
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte,
                            at::kShort, at::kChar}) {
      for (const std::int64_t count : {1, 1000, 100003}) {
        Tensors t{rank.part({count}, type).to(rank.device)};
        rank.group.allreduce(t)->wait();
        expect_equal(t[0], rank.sum({count}, type), c10::toString(type));
      }
    }
  });
}

/// Works that are in flight together, each started when its input had not been computed. Their input is what
/// the caller's stream had written by then, and not what it writes later.
TEST_P(TorchDevice, InputsAreReadInTheOrderOfTheCurrentStream) {
  expect_success(GetParam(), [](Rank& rank) {
    Tensors late, kept;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 6; ++i) {
      kept.push_back(rank.part({40000 + i}).to(rank.device));
      late.push_back(at::empty_like(kept.back()));
      late.back().copy_(kept.back());  // late, as all that emulated streams do
      Tensors one{late.back()};
      works.push_back(rank.group.allreduce(one));
    }
    for (int i = 0; i < 6; ++i) {
      works[static_cast<std::size_t>(i)]->wait();
      expect_equal(late[static_cast<std::size_t>(i)], rank.sum({40000 + i}), std::to_string(i));
    }
  });
}

TEST_P(TorchDevice, TensorsInSeveralPieces) {
  expect_success(GetParam(), [](Rank& rank) {
    at::Tensor whole = rank.part({60, 50}).to(rank.device);
    Tensors columns{whole.narrow(1, 10, 20)};
    rank.group.allreduce(columns)->wait();
    at::Tensor expected = rank.part({60, 50});
    expected.narrow(1, 10, 20).copy_(rank.sum({60, 50}).narrow(1, 10, 20));
    expect_equal(whole, expected, "columns");
  });
}

TEST_P(TorchDevice, FuturesHaveTheResult) {
  expect_success(GetParam(), [](Rank& rank) {
    Tensors t{rank.part({5000}).to(rank.device)};
    const auto work = rank.group.allreduce(t);
    const auto future = work->getFuture();
    future->wait();
    const Tensors result = future->value().toTensorVector();
    ASSERT_EQ(result.size(), 1U);
    expect_equal(result[0], rank.sum({5000}), "future");
    work->wait();
  });
}

TEST_P(TorchDevice, ListsAndCoalescedCalls) {
  expect_success(GetParam(), [](Rank& rank) {
    Tensors list{rank.part({3000}).to(rank.device), rank.part({17, 9}, at::kInt).to(rank.device)};
    rank.group.allreduce_coalesced(list)->wait();
    expect_equal(list[0], rank.sum({3000}), "first");
    expect_equal(list[1], rank.sum({17, 9}, at::kInt), "second");
  });
}

TEST_P(TorchDevice, BroadcastAndReduce) {
  expect_success(GetParam(), [](Rank& rank) {
    for (int root = 0; root < rank.size; ++root) {
      Tensors t{rank.part({3, 700}, at::kBFloat16).to(rank.device)};
      c10d::BroadcastOptions from;
      from.rootRank = root;
      rank.group.broadcast(t, from)->wait();
      expect_equal(t[0], rank.part(root, {3, 700}, at::kBFloat16), "broadcast");

      at::Tensor whole = rank.part({40, 30}).to(rank.device);
      Tensors part{whole.narrow(1, 5, 7)};
      c10d::ReduceOptions to;
      to.rootRank = root;
      rank.group.reduce(part, to)->wait();
      if (rank.number == root) expect_equal(part[0], rank.sum({40, 30}).narrow(1, 5, 7), "reduce");
    }
  });
}

TEST_P(TorchDevice, AllgatherAndReduceScatter) {
  expect_success(GetParam(), [](Rank& rank) {
    at::Tensor all = rank.part(0, {900}, at::kFloat);
    for (int r = 1; r < rank.size; ++r) all = at::cat({all, rank.part(r, {900}, at::kFloat)});

    Tensors in{rank.part({900}).to(rank.device)};
    std::vector<Tensors> out(1);
    for (int r = 0; r < rank.size; ++r) out[0].push_back(at::empty({900}, in[0].options()));
    rank.group.allgather(out, in)->wait();
    for (int r = 0; r < rank.size; ++r)
      expect_equal(out[0][static_cast<std::size_t>(r)], rank.part(r, {900}, at::kFloat), "allgather");

    at::Tensor flat = at::empty({900 * rank.size}, in[0].options());
    rank.group._allgather_base(flat, in[0])->wait();
    expect_equal(flat, all, "_allgather_base");

    at::Tensor chunk = at::empty({900}, in[0].options());
    at::Tensor sums = rank.part({900 * rank.size}).to(rank.device);
    rank.group._reduce_scatter_base(chunk, sums)->wait();
    expect_equal(chunk, rank.sum({900 * rank.size}).narrow(0, rank.number * 900, 900),
                 "_reduce_scatter_base");
  });
}

/// Three steps of a compressor on the GPU send what one on the host sends.
TEST_P(TorchDevice, CompressedAverages) {
  expect_success(GetParam(), [](Rank& rank) {
    constexpr std::int64_t kCount = 40000;
    const auto compressor = compressor_from_text("adacomp:500+asis");
    at::Tensor on_device = at::empty({kCount}, at::TensorOptions(at::kFloat).device(rank.device));
    CompressorState device(compressor, kCount, GpuOf{on_device.data_ptr()}), host(compressor, kCount);
    for (int step = 0; step < 3; ++step) {
      at::Tensor gradient = rank.part(rank.number + step, {kCount}, at::kFloat);
      on_device.copy_(gradient);
      const auto work = nzcl_torch::average_compressed(rank.group, device, on_device);
      nzcl_torch::average_compressed(rank.group, host, gradient)->wait();
      work->wait();
      expect_equal(on_device, gradient, "step " + std::to_string(step));
    }
  });
}

/// What the hook makes of a bucket on a GPU: dense in its first step, and then compressed.
TEST_P(TorchDevice, TheHook) {
  expect_success(GetParam(), [](Rank& rank) {
    constexpr std::int64_t kCount = 30000;
    const auto group = c10::intrusive_ptr<GroupBase>::reclaim_copy(&rank.group);
    const at::Tensor parameter = at::empty({kCount}, at::TensorOptions(at::kFloat).device(rank.device));
    const auto hook = std::make_shared<nzcl_torch::BucketHook>(
        group, nzcl_torch::HookOptions{.compress = "adacomp:100+asis"}, Tensors{parameter});
    CompressorState state(compressor_from_text("adacomp:100+asis"), kCount);
    for (int step = 0; step < 4; ++step) {
      at::Tensor expected = rank.part(rank.number + step, {kCount}, at::kFloat);
      const at::Tensor buffer = expected.to(rank.device);
      c10d::GradBucket bucket = bucket_of(buffer, parameter);
      const auto future = hook->run(bucket);
      future->wait();
      if (step == 0)
        nzcl_torch::average(rank.group, expected, 128)->wait();
      else
        nzcl_torch::average_compressed(rank.group, state, expected)->wait();
      expect_equal(future->value().toTensor(), expected, "step " + std::to_string(step));
    }
  });
}

/// What Gloo does goes through host memory.
TEST_P(TorchDevice, WhatIsGloos) {
  expect_success(GetParam(), [](Rank& rank) {
    Tensors t{(rank.part({500}) + 1).to(rank.device)};
    c10d::AllreduceOptions product;
    product.reduceOp = c10d::ReduceOp::PRODUCT;
    rank.group.allreduce(t, product)->wait();
    at::Tensor expected = at::ones({500});
    for (int r = 0; r < rank.size; ++r) expected = expected * (rank.part(r, {500}, at::kFloat) + 1);
    expect_equal(t[0], expected, "product");

    Tensors in{rank.part({70}).to(rank.device)};
    std::vector<Tensors> out;
    if (rank.number == 0) {
      out.emplace_back();
      for (int r = 0; r < rank.size; ++r) out[0].push_back(at::empty({70}, in[0].options()));
    }
    c10d::GatherOptions gather;
    gather.rootRank = 0;
    rank.group.gather(out, in, gather)->wait();
    if (rank.number == 0)
      for (int r = 0; r < rank.size; ++r)
        expect_equal(out[0][static_cast<std::size_t>(r)], rank.part(r, {70}, at::kFloat), "gathered");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TorchDevice, testing::Values(1, 2, 3), testing::PrintToStringParamName());

TEST(TorchDeviceErrors, NameWhatIsWrong) {
  const auto errors = run(2, [](Rank& rank) {
    Tensors host_only{rank.part({10}).to(rank.device)};
    EXPECT_THAT(
        [&] { rank.group.send(host_only, 1 - rank.number, 0); },
        testing::ThrowsMessage<c10::Error>(HasSubstr("tensors in host memory; this one is on privateuse")));
    Tensors nowhere{at::empty({10}, at::TensorOptions(at::kMeta))};
    EXPECT_THAT([&] { rank.group.allreduce(nowhere); },
                testing::ThrowsMessage<c10::Error>(HasSubstr("this one is on meta")));
    at::Tensor gathered = at::empty({20});
    EXPECT_THAT(
        [&] { rank.group._allgather_base(gathered, host_only[0]); },
        testing::ThrowsMessage<c10::Error>(HasSubstr("output 0 is on cpu, but the input is on privateuse")));
    Tensors t{rank.part({10}).to(rank.device)};
    rank.group.allreduce(t)->wait();
    expect_equal(t[0], rank.sum({10}), "after the errors");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Nobody waits for ever: neither works, nor the streams of those that are left.
TEST(TorchDeviceErrors, ARankThatIsGoneFailsTheOthersWorks) {
  std::atomic<int> ready{0};
  const auto errors = run(3, [&](Rank& rank) {
    Tensors t{rank.part({100000}).to(rank.device)};
    rank.group.allreduce(t)->wait();
    ++ready;
    if (rank.number == 2) {
      while (ready < rank.size) std::this_thread::yield();
      return nzcl_torch::abort(rank.group, "rank 2 gives up");
    }
    const auto work = rank.group.allreduce(t);
    EXPECT_THAT([&] { work->wait(); }, testing::ThrowsMessage<std::exception>(HasSubstr("rank 2 gives up")));
    emulated_gpu(rank.number).synchronize(reinterpret_cast<gpu::Stream>(rank.stream.id()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test
