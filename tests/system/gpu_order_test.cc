// When memory of a GPU is read and written: in the order of the caller's stream, however early or late the
// other ranks are, and whatever becomes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/system/gpu_floats.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

/// Memory of one rank, of kCount floats: 1 on rank 0, and 2 on rank 1.
struct Floats {
  Floats(Communicator& communicator, OnGpu& on)
      : gpu(communicator, on), host(kCount, static_cast<float>(communicator.rank() + 1)) {
    buffer = communicator.register_buffer(host.data(), kCount * sizeof(float));
    on.gpu().copy(on.stream(), gpu.data, host.data(), kCount * sizeof(float));
    on.gpu().synchronize(on.stream());
  }
  /// What the GPU has now, past the stream of the caller.
  std::vector<float> now(OnGpu& on) const {
    std::vector<float> floats(kCount);
    void* const other = on.gpu().make_stream();
    on.gpu().copy(other, floats.data(), gpu.data, floats.size() * sizeof(float));
    on.gpu().synchronize(other);
    on.gpu().destroy_stream(other);
    return floats;
  }
  GpuFloats gpu;
  std::vector<float> host;
  RegisteredBuffer buffer;
};

std::uint64_t chunk(const Communicator& c) { return kCount / static_cast<std::uint64_t>(c.size()); }

/// A call whose result does not wait for what rank 1 has on its GPU.
struct Early {
  const char* name;
  std::function<Work(Communicator&, const Floats&, void* stream)> start;
  float result;  // the first element of it
};

const std::vector<Early>& early_calls() {
  static const std::vector<Early> calls{
      {"broadcast",
       [](Communicator& c, const Floats& f, void* stream) {
         return c.broadcast({.data = f.gpu.data, .count = kCount, .stream = stream});
       },
       1},
      {"reduce",
       [](Communicator& c, const Floats& f, void* stream) {
         const bool root = c.rank() == 1;
         return c.reduce({.input = root ? f.host.data() : f.gpu.data,
                          .output = f.gpu.data,
                          .count = kCount,
                          .root = 1,
                          .stream = stream});
       },
       3},
      {"reduce_scatter",
       [](Communicator& c, const Floats& f, void* stream) {
         return c.reduce_scatter(
             {.input = f.host.data(), .output = f.gpu.data, .count = chunk(c), .stream = stream});
       },
       3},
      {"allgather",
       [](Communicator& c, const Floats& f, void* stream) {
         return c.allgather(
             {.input = f.host.data(), .output = f.gpu.data, .count = chunk(c), .stream = stream});
       },
       1},
      {"allreduce",
       [](Communicator& c, const Floats& f, void* stream) {
         return c.allreduce(
             {.input = f.host.data(), .output = f.gpu.data, .count = kCount, .stream = stream});
       },
       3},
      {"allgather_in_place",
       [](Communicator& c, const Floats& f, void* stream) {
         return c.allgather({.input = f.gpu.data + static_cast<std::uint64_t>(c.rank()) * chunk(c),
                             .output = f.gpu.data,
                             .count = chunk(c),
                             .stream = stream});
       },
       1}};
  return calls;
}

/// Results are on the host long before the stream has come to the call, and what it does before then still
/// finds the old output.
TEST(GpuOrder, EarlyResultsWaitForTheStream) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    for (const Early& early : early_calls()) {
      const Floats floats(c, on);
      const gpu::Flag flag = on.gpu().take_flag();
      if (c.rank() == 1) on.gpu().await(on.stream(), flag.device, flag.value);
      Work work = early.start(c, floats, on.stream());
      if (c.rank() == 1) {
        work.enqueue_wait(on.stream());
        std::this_thread::sleep_for(50ms);
        EXPECT_FALSE(work.test()) << early.name;
        EXPECT_THAT(floats.now(on), Each(2.0f)) << early.name;
      }
      flag.raise_here();
      work.wait();
      if (c.rank() == 1) {
        EXPECT_EQ(floats.now(on).front(), early.result) << early.name;
      }
      EXPECT_TRUE(ends(on, on.stream())) << early.name;
      on.gpu().give_back(flag);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The other ranks have what they want, so only this rank's operation fails. Its output stays as it was.
TEST(GpuOrder, LateStreamFailsOnlyItsOwnOperation) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    const Floats floats(c, on);
    const gpu::Flag flag = on.gpu().take_flag();
    if (c.rank() == 1) on.gpu().await(on.stream(), flag.device, flag.value);
    Work work = c.broadcast({.data = floats.gpu.data,
                             .count = kCount,
                             .timeout = c.rank() == 1 ? 300ms : 0ms,
                             .stream = on.stream()});
    if (c.rank() == 0) {
      work.wait();
    } else {
      void* const other = on.gpu().make_stream();
      work.enqueue_wait(other);
      EXPECT_TRUE(ends(on, other));
      const Error error = thrown_by([&] { work.wait(); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_THAT(error.what(), HasSubstr("its stream did not come to it within 0.3 s"));
      on.gpu().destroy_stream(other);
    }
    flag.raise_here();
    EXPECT_TRUE(ends(on, on.stream()));
    EXPECT_THAT(floats.now(on), Each(static_cast<float>(c.rank() + 1)));
    c.barrier();
    c.allreduce(floats.gpu.request(on.stream())).wait();
    EXPECT_THAT(floats.now(on), Each(3.0f));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// One of three ranks does not call, and aborts.
TEST(GpuOrder, AbortReleasesTheStreamsOfEveryCollective) {
  for (const Early& early : early_calls()) {
    std::atomic<int> failed{0};  // a rank that only sends may be done before
    const auto errors = run_ranks(setting(3), [&](Communicator& c) {
      OnGpu on;
      const Floats floats(c, on);
      c.barrier();
      if (c.rank() == 2) {
        std::this_thread::sleep_for(20ms);
        return c.abort("enough");
      }
      Work work = early.start(c, floats, on.stream());
      work.enqueue_wait(on.stream());
      EXPECT_TRUE(ends(on, on.stream())) << early.name;
      const std::string text = thrown_by([&] { work.wait(); }).what();
      EXPECT_THAT(text, AnyOf("", HasSubstr("enough"))) << early.name;
      if (!text.empty()) ++failed;
    });
    EXPECT_GT(failed, 0) << early.name;
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// After the first operation of a size, no memory is pinned any more.
TEST(GpuOrder, MemoryOnTheHostIsUsedAgainByEveryCollective) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    const Floats floats(c, on);
    for (const Early& early : early_calls()) {
      early.start(c, floats, on.stream()).wait();
      const std::size_t pieces = on.gpu().pieces();
      for (int i = 0; i < 10; ++i) early.start(c, floats, on.stream()).wait();
      EXPECT_EQ(on.gpu().pieces(), pieces) << early.name;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test
