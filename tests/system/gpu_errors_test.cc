// What goes wrong with memory of a GPU: every stream goes on, and the host learns what has happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "nzcl/compress.h"
#include "tests/system/gpu_floats.h"
#include "tests/system/rank_to_kill.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

TEST(GpuErrors, AbortReleasesTheStreamsOfAllRanks) {
  const auto errors = run_ranks(setting(3), [](Communicator& communicator) {
    OnGpu on;
    abort_while_others_wait(communicator, on, GpuFloats(communicator, on));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// A rank that is a process of its own, on a GPU, and is killed while the other one's stream waits for it.
TEST(GpuErrors, DeadPeerReleasesTheStream) {
  for (const auto& [transport, gathers] :
       {std::pair("shm", false), std::pair("tcp", false), std::pair("shm", true), std::pair("tcp", true)}) {
    RankToKill other(setting().options, transport, [](Communicator& communicator, const auto& die) {
      OnGpu on;
      GpuFloats floats(communicator, on);
      communicator.allreduce(floats.request(on.stream())).wait();
      die();
    });
    Communicator communicator(other.options_of_first());
    OnGpu on;
    GpuFloats floats(communicator, on);
    communicator.allreduce(floats.request(on.stream())).wait();
    Work work =
        gathers
            ? communicator.allgather(
                  {.input = floats.data, .output = floats.data, .count = kCount / 2, .stream = on.stream()})
            : communicator.allreduce(floats.request(on.stream()));
    work.enqueue_wait(on.stream());
    other.kill();
    EXPECT_TRUE(ends(on, on.stream())) << transport;
    EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("rank 1")) << transport;
  }
}

TEST(GpuErrors, StreamThatDoesNotComeInTimeFailsByTimeout) {
  Setting s = setting();
  s.options.timeout_s = 0.3;
  s.options.algorithm = Algorithm::push;
  const auto errors = run_ranks(s, [](Communicator& communicator) {
    OnGpu on;
    GpuFloats floats(communicator, on);
    const gpu::Flag flag = on.gpu().take_flag();
    if (communicator.rank() == 0) on.gpu().await(on.stream(), flag.device, flag.value);
    Work work = communicator.allreduce(floats.request(on.stream()));
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(),
                AnyOf(HasSubstr("its stream did not come to it"), HasSubstr("rank(s) 0 did not")));
    communicator.close();
    flag.raise_here();  // the kernel runs now, and writes to memory that is still there
    EXPECT_TRUE(ends(on, on.stream()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuErrors, BrokenGpuFailsAllRanksInItsDriversWords) {
  const auto errors = run_ranks(setting(), [](Communicator& communicator) {
    OnGpu on;
    GpuFloats floats(communicator, on);
    communicator.allreduce(floats.request(on.stream())).wait();
    communicator
        .barrier();  // a failure of the next operation must not reach one that has not seen the end of this
    const gpu::Flag flag = on.gpu().take_flag();
    on.gpu().await(on.stream(), flag.device, flag.value);
    Work work = communicator.allreduce(floats.request(on.stream()));
    if (communicator.rank() == 1) on.gpu().break_down("CUDA_ERROR_ILLEGAL_ADDRESS");
    flag.raise_here();
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::system);
    EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
    if (communicator.rank() == 1) {
      EXPECT_THAT(
          thrown_by([&] { static_cast<void>(communicator.allreduce(floats.request(on.stream()))); }).what(),
          HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The request of one rank is refused, before or after it was seen that its memory is a GPU's. The others'
/// streams go on, and so does the communicator.
TEST(GpuErrors, RefusalOfOneRankLeavesTheCommunicatorUsable) {
  const auto errors = run_ranks(setting(), [](Communicator& communicator) {
    OnGpu on;
    GpuFloats floats(communicator, on);
    OnGpu second;
    const GpuFloats elsewhere(communicator, second);
    for (const bool mixed : {false, true}) {
      AllreduceRequest request = floats.request(on.stream());
      if (communicator.rank() == 0) {
        (mixed ? request.output : request.stream) = elsewhere.data;
        EXPECT_NE(std::string(thrown_by([&] { static_cast<void>(communicator.allreduce(request)); }).what()),
                  "");
      } else {
        Work work = communicator.allreduce(request);
        work.enqueue_wait(on.stream());
        EXPECT_TRUE(ends(on, on.stream()));
        EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("rank 0 refused its request"));
      }
    }
    communicator.allreduce(floats.request(on.stream())).wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// One rank's GPU has no memory left, or the host has none that it could pin: its call says so in the
/// driver's words. The others' streams go on, and so does the communicator when there is memory again.
TEST(GpuErrors, MemoryThatIsUsedUpFailsTheOperationOnly) {
  using Start = std::function<Work(Communicator&, const GpuFloats&, CompressorState&, void* stream)>;
  static constexpr std::int32_t one_index[]{3};
  const std::vector<std::pair<const char*, Start>> calls{
      {"allreduce", [](Communicator& c, const GpuFloats& floats, CompressorState&,
                       void* stream) { return c.allreduce(floats.request(stream)); }},
      {"broadcast",
       [](Communicator& c, const GpuFloats& floats, CompressorState&, void* stream) {
         return c.broadcast({.data = floats.data, .count = kCount, .root = 1, .stream = stream});
       }},
      {"allgather",
       [](Communicator& c, const GpuFloats& floats, CompressorState&, void* stream) {
         const std::uint64_t each = kCount / 2;
         return c.allgather({.input = floats.data + static_cast<std::uint64_t>(c.rank()) * each,
                             .output = floats.data,
                             .count = each,
                             .stream = stream});
       }},
      {"allreduce_sparse",
       [](Communicator& c, const GpuFloats& floats, CompressorState&, void* stream) {
         SparseAllreduceRequest request;
         request.values = floats.data;
         request.indices = std::span(one_index);
         request.count = kCount - 8;
         request.block_elems = 1;
         request.output = floats.data + 8;
         request.stream = stream;
         return c.allreduce_sparse(request);
       }},
      {"allreduce_compressed",
       [](Communicator& c, const GpuFloats& floats, CompressorState& state, void* stream) {
         return c.allreduce_compressed(
             {.state = &state, .input = floats.data, .output = floats.data, .stream = stream});
       }}};
  for (const auto& [name, start] : calls) {
    const auto errors = run_ranks(setting(), [&, &name = name, &start = start](Communicator& communicator) {
      OnGpu on;
      const GpuFloats floats(communicator, on);
      CompressorState state(compressor_from_text("topk:0.01"), kCount, GpuOf{floats.data});
      if (communicator.rank() == 0) {
        on.gpu().run_out_of_memory(true);
        const Error error =
            thrown_by([&] { static_cast<void>(start(communicator, floats, state, on.stream())); });
        EXPECT_EQ(error.code(), ErrorCode::system) << name;
        EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")) << name;
        on.gpu().run_out_of_memory(false);
      } else {
        Work work = start(communicator, floats, state, on.stream());
        work.enqueue_wait(on.stream());
        EXPECT_TRUE(ends(on, on.stream())) << name;
        EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("rank 0 refused its request")) << name;
      }
      start(communicator, floats, state, on.stream()).wait();
      const GpuFloats ones(communicator, on);
      communicator.allreduce(ones.request(on.stream())).wait();
      EXPECT_THAT(ones.read(on), testing::Each(2.0f)) << name;
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << name;
  }
}

/// A call that is captured takes its memory then, and no operation begins if there is none.
TEST(GpuErrors, MemoryThatIsUsedUpByACapturedCall) {
  const auto errors = run_ranks(setting(), [](Communicator& communicator) {
    OnGpu on;
    const GpuFloats floats(communicator, on);
    on.gpu().begin_capture(on.stream());
    on.gpu().run_out_of_memory(true);
    EXPECT_THAT(
        thrown_by([&] { static_cast<void>(communicator.allreduce(floats.request(on.stream()))); }).what(),
        HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
    on.gpu().run_out_of_memory(false);
    Work work = communicator.allreduce(floats.request(on.stream()));
    work.enqueue_wait(on.stream());
    const auto graph = on.gpu().take_graph(on.stream());
    on.gpu().launch_graph(on.stream(), graph);
    EXPECT_THAT(floats.read(on), testing::Each(2.0f));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuErrors, WhatDoesNotTakeItSaysSoAtTheCall) {
  run_ranks(setting(1), [](Communicator& communicator) {
    OnGpu on;
    GpuFloats floats(communicator, on);
    std::vector<float> host(kCount);
    const auto host_buffer = communicator.register_buffer(host.data(), kCount * sizeof(float));
    const auto code_and_text = [&](const std::function<void()>& call) {
      const Error error = thrown_by(call);
      return std::string(name_of(error.code())) + ": " + error.what();
    };
    float* const gpu = floats.data;
    const auto unsupported = [&](const char* argument) {
      return AllOf(HasSubstr("unsupported"), HasSubstr(argument), HasSubstr("memory of emulated GPU"));
    };
    CompressorState state(Compressor{.selection = TopK{}}, kCount);
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allreduce_compressed(
                      {.state = &state, .input = gpu, .output = host.data()}));
                }),
                unsupported("input"));
    OnGpu second;
    GpuFloats other(communicator, second);
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allreduce(
                      {.input = gpu, .output = other.data, .count = kCount, .stream = on.stream()}));
                }),
                HasSubstr("they must be on the same GPU"));
  });
}

TEST(GpuErrors, WrongRegistrationsAndRequestsAreRefused) {
  run_ranks(setting(1), [](Communicator& communicator) {
    OnGpu on;
    std::vector<float> host(kCount);
    std::byte* const memory = on.allocate(4096);
    const auto text_of_registering = [&](void* data, std::size_t bytes, MemoryKind kind) {
      return std::string(
          thrown_by([&] { static_cast<void>(communicator.register_buffer(data, bytes, kind)); }).what());
    };
    EXPECT_THAT(text_of_registering(memory, 4096, MemoryKind::host), HasSubstr("MemoryKind::device"));
    EXPECT_THAT(text_of_registering(memory, 4097, MemoryKind::device), HasSubstr("not all in one piece"));
    EXPECT_THAT(text_of_registering(nullptr, 4097, MemoryKind::device), HasSubstr("the range is empty"));
    const auto buffer = communicator.register_buffer(memory, 4096, MemoryKind::device);
    const auto host_buffer = communicator.register_buffer(host.data(), kCount * sizeof(float));
    const auto text_of = [&](const AllreduceRequest& request) {
      return std::string(thrown_by([&] { static_cast<void>(communicator.allreduce(request)); }).what());
    };
    EXPECT_THAT(text_of({.input = memory + 2, .output = memory + 2, .count = 8, .stream = on.stream()}),
                HasSubstr("not aligned"));
    EXPECT_THAT(text_of({.input = memory, .output = memory + 16, .count = 8, .stream = on.stream()}),
                HasSubstr("overlap"));
    EXPECT_THAT(text_of({.input = memory, .output = memory, .count = 1025, .stream = on.stream()}),
                HasSubstr("not inside a registered buffer"));
    EXPECT_THAT(text_of({.input = host.data(), .output = host.data(), .count = 8, .stream = on.stream()}),
                HasSubstr("a stream is given"));
    Work work = communicator.allreduce({.input = host.data(), .output = host.data(), .count = 8});
    EXPECT_EQ(thrown_by([&] { work.enqueue_wait(on.stream()); }).code(), ErrorCode::invalid_usage);
    work.wait();
  });
}

TEST(GpuErrors, WrongRequestsOfOtherCollectivesAreRefused) {
  run_ranks(setting(1), [](Communicator& communicator) {
    OnGpu on, second;
    std::vector<float> host(kCount);
    const auto host_buffer = communicator.register_buffer(host.data(), kCount * sizeof(float));
    GpuFloats floats(communicator, on), elsewhere(communicator, second);
    float* const gpu = floats.data;
    const auto text_of = [&](const std::function<Work()>& call) {
      return std::string(thrown_by([&] { static_cast<void>(call()); }).what());
    };
    EXPECT_THAT(text_of([&] { return communicator.broadcast({.data = gpu + 1, .count = kCount}); }),
                HasSubstr("broadcast: data (80000 bytes at"));
    EXPECT_THAT(text_of([&] { return communicator.broadcast({.count = kCount, .stream = on.stream()}); }),
                HasSubstr("broadcast: data is null"));
    EXPECT_THAT(
        text_of([&] {
          return communicator.broadcast({.data = host.data(), .count = kCount, .stream = on.stream()});
        }),
        HasSubstr("broadcast: a stream is given, and the memory is not registered"));
    EXPECT_THAT(text_of([&] {
                  return communicator.reduce({.input = reinterpret_cast<std::byte*>(gpu) + 2,
                                              .output = gpu,
                                              .count = 8,
                                              .stream = on.stream()});
                }),
                HasSubstr("reduce: input is not aligned"));
    EXPECT_THAT(text_of([&] {
                  return communicator.reduce_scatter(
                      {.input = gpu, .output = elsewhere.data, .count = 8, .stream = on.stream()});
                }),
                AllOf(HasSubstr("reduce_scatter: input is memory of emulated GPU"),
                      HasSubstr("they must be on the same GPU")));
    EXPECT_THAT(
        text_of([&] {
          return communicator.allgather({.input = gpu, .output = gpu + 4, .count = 8, .stream = on.stream()});
        }),
        HasSubstr("allgather: input and output overlap"));
    EXPECT_THAT(
        text_of([&] {
          return communicator.allgather({.input = gpu, .output = gpu, .count = 8, .stream = second.stream()});
        }),
        HasSubstr("is no stream of this GPU"));
    Work empty = communicator.allgather({.input = gpu, .output = gpu, .stream = on.stream()});
    EXPECT_NO_THROW(empty.enqueue_wait(on.stream()));  // there is nothing to wait for
    empty.wait();
    communicator.allgather({.input = gpu, .output = gpu, .count = kCount, .stream = on.stream()}).wait();
  });
}

/// Without a driver, memory of the host cannot be taken for a GPU's, and the reason is one clear sentence.
TEST(GpuErrors, WithoutADriverRegistrationSaysSo) {
  run_ranks(setting(1), [](Communicator& communicator) {
    std::vector<float> host(kCount);
    const Error error = thrown_by([&] {
      static_cast<void>(
          communicator.register_buffer(host.data(), kCount * sizeof(float), MemoryKind::device));
    });
    if (error.code() == ErrorCode::invalid_argument) GTEST_SKIP() << "this machine has a CUDA driver";
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("register_buffer: no CUDA driver: "), HasSubstr("libcuda.so.1")));
  });
}

/// After the first operation of a size, no memory is pinned any more.
TEST(GpuErrors, MemoryOnTheHostIsUsedAgain) {
  const auto errors = run_ranks(setting(), [](Communicator& communicator) {
    OnGpu on;
    GpuFloats floats(communicator, on);
    communicator.allreduce(floats.request(on.stream())).wait();
    const std::size_t pieces = on.gpu().pieces();
    for (int i = 0; i < 20; ++i) {
      Work work = communicator.allreduce(floats.request(on.stream()));
      work.wait();
      EXPECT_EQ(on.gpu().pieces(), pieces) << i;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test
