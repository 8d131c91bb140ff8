// What goes wrong with memory of a GPU: every stream goes on, and the host learns what has happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "nzcl/compress.h"
#include "tests/system/on_gpu.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr std::uint64_t kCount = 20000;

Setting setting(int ranks = 2) {
  Setting s{.ranks = ranks, .options = {}};
  s.options.log_level = LogLevel::off;
  s.options.timeout_s = 30;
  return s;
}

/// Floats in memory of a GPU, all of them 1, and registered.
struct GpuFloats {
  GpuFloats(Communicator& communicator, OnGpu& on, std::uint64_t count = kCount)
      : ones(count, 1.0f), data(reinterpret_cast<float*>(on.allocate(count * sizeof(float)))) {
    on.gpu().copy(on.stream(), data, ones.data(), count * sizeof(float));
    on.gpu().synchronize(on.stream());  // `ones` may end before the stream has come to the copy
    buffer = communicator.register_buffer(data, count * sizeof(float), MemoryKind::device);
  }
  AllreduceRequest request(void* stream) const {
    return {.input = data, .output = data, .count = ones.size(), .stream = stream};
  }
  std::vector<float> ones;
  float* data;
  RegisteredBuffer buffer;
};

/// The error that the call throws, or one with an empty text.
Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorCode::internal, "");
}

/// Whether the stream has come to its end within a time that no failure may take.
bool ends(OnGpu& on, void* stream) {
  std::atomic<bool> ended{false};
  std::jthread waiting([&] {
    on.gpu().synchronize(stream);
    ended = true;
  });
  for (int i = 0; i < 1000 && !ended; ++i) std::this_thread::sleep_for(10ms);
  if (!ended) std::abort();  // the thread would never be joined
  return true;
}

TEST(GpuErrors, AbortReleasesTheStreamsOfAllRanks) {
  const auto errors = run_ranks(setting(3), [](Communicator& communicator) {
    OnGpu on;
    GpuFloats floats(communicator, on);
    if (communicator.rank() == 2) {
      std::this_thread::sleep_for(50ms);
      return communicator.abort("enough");
    }
    Work work = communicator.allreduce(floats.request(on.stream()));
    work.enqueue_wait(on.stream());
    EXPECT_TRUE(ends(on, on.stream()));
    EXPECT_THAT(error_of([&] { work.wait(); }).what(), HasSubstr("enough"));
    EXPECT_NO_THROW(work.enqueue_wait(on.stream()));  // it is over, so this waits for nothing
    EXPECT_TRUE(ends(on, on.stream()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// A rank that is a process of its own, on a GPU, and is killed while the other one's stream waits for it.
TEST(GpuErrors, DeadPeerReleasesTheStream) {
  for (const char* transport : {"shm", "tcp"}) {
    const std::string meeting = testing::TempDir() + "nzcl_gpu_errors_" + std::to_string(::getpid());
    std::filesystem::remove(meeting);
    Options options = setting().options;
    options.transport = transport;
    options.bootstrap = Bootstrap::file;
    options.rendezvous_file = meeting;
    options.world_size = 2;
    std::array<int, 2> word{};  // by which the child is told to die
    ASSERT_EQ(::pipe(word.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(60);
      options.rank = 1;
      Communicator communicator(options);
      OnGpu on;
      GpuFloats floats(communicator, on);
      communicator.allreduce(floats.request(on.stream())).wait();
      char told = 0;
      if (::read(word[0], &told, 1) == 1) ::raise(SIGKILL);
      ::_exit(1);
    }
    options.rank = 0;
    Communicator communicator(options);
    OnGpu on;
    GpuFloats floats(communicator, on);
    communicator.allreduce(floats.request(on.stream())).wait();
    Work work = communicator.allreduce(floats.request(on.stream()));
    work.enqueue_wait(on.stream());
    EXPECT_EQ(::write(word[1], "!", 1), 1);
    EXPECT_TRUE(ends(on, on.stream())) << transport;
    EXPECT_THAT(error_of([&] { work.wait(); }).what(), HasSubstr("rank 1")) << transport;
    ::waitpid(child, nullptr, 0);
    for (const int end : word) ::close(end);
    std::filesystem::remove(meeting);
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
    const Error error = error_of([&] { work.wait(); });
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
    const Error error = error_of([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::system);
    EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
    if (communicator.rank() == 1) {
      EXPECT_THAT(
          error_of([&] { static_cast<void>(communicator.allreduce(floats.request(on.stream()))); }).what(),
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
    std::vector<float> host(kCount);
    const auto host_buffer = communicator.register_buffer(host.data(), kCount * sizeof(float));
    for (const bool mixed : {false, true}) {
      AllreduceRequest request = floats.request(on.stream());
      if (communicator.rank() == 0) {
        (mixed ? request.output : request.stream) = host.data();
        EXPECT_NE(std::string(error_of([&] { static_cast<void>(communicator.allreduce(request)); }).what()),
                  "");
      } else {
        Work work = communicator.allreduce(request);
        work.enqueue_wait(on.stream());
        EXPECT_TRUE(ends(on, on.stream()));
        EXPECT_THAT(error_of([&] { work.wait(); }).what(), HasSubstr("rank 0 refused its request"));
      }
    }
    communicator.allreduce(floats.request(on.stream())).wait();
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
      const Error error = error_of(call);
      return std::string(name_of(error.code())) + ": " + error.what();
    };
    const std::int32_t index = 0;
    float* const gpu = floats.data;
    const auto unsupported = [&](const char* argument) {
      return AllOf(HasSubstr("unsupported"), HasSubstr(argument), HasSubstr("memory of emulated GPU"));
    };
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allreduce_sparse({.values = gpu,
                                                                   .indices = {&index, 1, IndexType::int32},
                                                                   .count = kCount,
                                                                   .output = host.data()}));
                }),
                unsupported("values"));
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allreduce_sparse({.values = host.data(),
                                                                   .indices = {&index, 1, IndexType::int32},
                                                                   .count = kCount,
                                                                   .output = gpu}));
                }),
                unsupported("output"));
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allreduce_sparse({.values = host.data(),
                                                                   .indices = {&index, 1, IndexType::int32},
                                                                   .count = kCount,
                                                                   .packed_values = gpu,
                                                                   .packed_capacity = 2}));
                }),
                unsupported("packed_values"));
    EXPECT_THAT(
        code_and_text([&] { static_cast<void>(communicator.broadcast({.data = gpu, .count = kCount})); }),
        unsupported("data"));
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.reduce({.input = gpu, .output = gpu, .count = kCount}));
                }),
                unsupported("input"));
    EXPECT_THAT(
        code_and_text([&] {
          static_cast<void>(communicator.reduce_scatter({.input = gpu, .output = gpu, .count = kCount}));
        }),
        unsupported("input"));
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allgather({.input = gpu, .output = gpu, .count = kCount}));
                }),
                unsupported("input"));
    CompressorState state(Compressor{.selection = TopK{}}, kCount);
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allreduce_compressed(
                      {.state = &state, .input = gpu, .output = host.data()}));
                }),
                unsupported("input"));
    EXPECT_THAT(code_and_text([&] {
                  static_cast<void>(communicator.allreduce(
                      {.input = gpu, .output = host.data(), .count = kCount, .stream = on.stream()}));
                }),
                AllOf(HasSubstr("unsupported"), HasSubstr("they must be on the same GPU")));
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
          error_of([&] { static_cast<void>(communicator.register_buffer(data, bytes, kind)); }).what());
    };
    EXPECT_THAT(text_of_registering(memory, 4096, MemoryKind::host), HasSubstr("MemoryKind::device"));
    EXPECT_THAT(text_of_registering(memory, 4097, MemoryKind::device), HasSubstr("not all in one piece"));
    EXPECT_THAT(text_of_registering(nullptr, 4097, MemoryKind::device), HasSubstr("the range is empty"));
    const auto buffer = communicator.register_buffer(memory, 4096, MemoryKind::device);
    const auto host_buffer = communicator.register_buffer(host.data(), kCount * sizeof(float));
    const auto text_of = [&](const AllreduceRequest& request) {
      return std::string(error_of([&] { static_cast<void>(communicator.allreduce(request)); }).what());
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
    EXPECT_EQ(error_of([&] { work.enqueue_wait(on.stream()); }).code(), ErrorCode::invalid_usage);
    work.wait();
  });
}

/// Without a driver, memory of the host cannot be taken for a GPU's, and the reason is one clear sentence.
TEST(GpuErrors, WithoutADriverRegistrationSaysSo) {
  run_ranks(setting(1), [](Communicator& communicator) {
    std::vector<float> host(kCount);
    const Error error = error_of([&] {
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
