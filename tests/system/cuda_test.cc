// CudaGpu over a driver in software: every call of it is made as the driver's documentation asks for, and
// whole allreduces go through. With DEVICE_CHECK=1 in the environment the driver is the machine's own, and
// what only the one in software can do is skipped (scripts/device-check).
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/gpu/find_gpu.h"
#include "tests/system/failing.h"
#include "tests/system/on_cuda.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/run_collective.h"

namespace nzcl::test {

void* fake() {
  static void* const library = ::dlopen(NZCL_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  return library;
}

namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

int registered() { return driver_function<int()>("fakeCudaRegistered")(); }

TEST_F(CudaTest, SaysWhichGpusThereAre) {
  if (on_device()) GTEST_SKIP() << "what is expected is the driver in software's";
  EXPECT_THAT(
      gpu::describe_gpus(),
      ElementsAre("GPU 0: Fake GPU, compute capability 9.0, NICs reach its memory", "driver for CUDA 12.2"));
  EXPECT_EQ(gpu()->name(), "GPU 0: Fake GPU, compute capability 9.0");
}

TEST_F(CudaTest, PinnedMemoryIsRegisteredUntilItIsFreed) {
  if (on_device()) GTEST_SKIP() << "only the driver in software counts what is registered";
  const int before = registered();
  const gpu::PinnedMemory memory = gpu()->pin(100000);
  EXPECT_EQ(registered(), before + 1);
  EXPECT_EQ(memory.host[99999], std::byte{0});
  gpu()->unpin(memory);
  EXPECT_EQ(registered(), before);
}

TEST_F(CudaTest, ErrorsHaveTheDriversName) {
  try {
    gpu()->raise(nullptr, nullptr, 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::system);
    EXPECT_THAT(e.what(), AllOf(HasSubstr("cuStreamWriteValue32"), HasSubstr("CUDA_ERROR_INVALID_VALUE")));
  }
}

TEST_F(CudaTest, LendsMemoryOrSaysWhyNot) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::byte* const memory = gpu()->allocate(16 * page);
  try {
    const gpu::LentMemory lent = gpu()->lend({memory, 16 * page});
    EXPECT_GE(lent.descriptor.get(), 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    EXPECT_TRUE(on_device()) << error.what();
  }
  EXPECT_THROW(static_cast<void>(gpu()->lend({memory, std::size_t{1} << 40})), Error);
  gpu()->free(memory);
}

/// The driver lends memory to the transport, which reads and writes it.
TEST_F(CudaTest, DevicesReadAndWriteItsMemory) {
  if (on_device()) GTEST_SKIP() << "a device in software does not reach a GPU's memory";
  const Problem p{.count = 100003, .block = 256, .ranks = 2};
  const Expected expected = make_expected(p);
  Options options;
  options.tune.gpu_direct = true;
  options.tune.direct_bytes = 1;
  options.algorithm = Algorithm::push;
  std::barrier<> ready(2), over(2);
  const auto errors = run_ranks({.ranks = 2, .options = options}, [&](Communicator& communicator) {
    const Leaving leaves_ready(ready), leaves_over(over);
    const auto device = gpu();
    void* const stream = device->make_stream();
    const auto data = make_input(p, communicator.rank());
    const gpu::PinnedMemory result = device->pin(p.bytes());
    std::byte* const memory = device->allocate(p.bytes());
    const auto buffer = communicator.register_buffer(memory, p.bytes(), MemoryKind::device);
    for (int i = 0; i < 3; ++i) {
      device->copy(stream, memory, data.data(), p.bytes());
      Work work = communicator.allreduce(
          {.input = memory, .output = memory, .count = p.count, .block_elems = p.block, .stream = stream});
      work.enqueue_wait(stream);
      device->copy(stream, result.host, memory, p.bytes());
      device->synchronize(stream);
      EXPECT_EQ(first_difference({result.host, result.host + p.bytes()}, expected.data), -1);
      work.wait();
      if (i == 0) ready.arrive_and_wait();
    }
    EXPECT_GT(communicator.statistics().gpu_direct_bytes, 0u);
    over.arrive_and_wait();
    device->destroy_stream(stream);
    device->free(memory);
    device->unpin(result);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_F(CudaTest, AllreducesHaveTheBitsOfThePlainSum) {
  for (const int ranks : {1, 2, 3}) {
    for (const DataType type : {DataType::float32, DataType::float16, DataType::uint8, DataType::int64}) {
      for (const std::uint64_t block : {1, 256, 5000}) {
        for (const bool in_place : {true, false}) {
          const Problem p{.type = type, .count = 100003, .block = block, .ranks = ranks};
          const Expected expected = make_expected(p);
          // All ranks share the context of a GPU, and calls of its driver wait for all its work, or for calls
          // that do. So each rank has what it needs before any of them waits for another one.
          std::barrier<> ready(ranks), over(ranks);
          const auto errors = run_ranks({.ranks = ranks, .options = {}}, [&](Communicator& communicator) {
            const Leaving leaves_ready(ready), leaves_over(over);
            const auto device = gpu();
            void* const stream = device->make_stream();
            const auto data = make_input(p, communicator.rank());
            const gpu::PinnedMemory result = device->pin(p.bytes());
            std::byte *const input = device->allocate(p.bytes()), *const other = device->allocate(p.bytes());
            const auto in = communicator.register_buffer(input, p.bytes(), MemoryKind::device);
            const auto out = communicator.register_buffer(other, p.bytes(), MemoryKind::device);
            std::byte* const output = in_place ? input : other;
            const auto start = [&] {
              device->copy(stream, input, data.data(), p.bytes());
              return communicator.allreduce({.input = input,
                                             .output = output,
                                             .count = p.count,
                                             .type = p.type,
                                             .block_elems = block,
                                             .stream = stream});
            };
            start().wait();  // pins memory
            ready.arrive_and_wait();
            for (int i = 0; i < 4; ++i) {
              Work work = start();
              work.enqueue_wait(stream);
              device->copy(stream, result.host, output, p.bytes());
              device->synchronize(stream);
              EXPECT_EQ(first_difference({result.host, result.host + p.bytes()}, expected.data), -1)
                  << p.text();
              work.wait();
            }
            // When all ranks have opened each other's memory, they read it, but for what is cut into tiles.
            const bool sums = ranks > 1 && block * element_bytes(type) >= 512;
            EXPECT_GE(communicator.statistics().gpu_sums, sums ? 2u : 0u) << p.text();
            over.arrive_and_wait();
            device->destroy_stream(stream);
            device->free(input);
            device->free(other);
            device->unpin(result);
          });
          for (const std::string& error : errors) EXPECT_EQ(error, "");
        }
      }
    }
  }
}

/// What is put into the stream while it lives becomes a graph.
class Capture {
 public:
  explicit Capture(void* stream) : stream_(stream) {
    constexpr int kModeOfThread = 1;
    EXPECT_EQ(driver_function<int(void*, int)>("cuStreamBeginCapture_v2")(stream, kModeOfThread), 0);
  }
  void end() {
    void* graph = nullptr;
    EXPECT_EQ(driver_function<int(void*, void**)>("cuStreamEndCapture")(stream_, &graph), 0);
    const auto instantiate =
        driver_function<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags");
    EXPECT_EQ(instantiate(&graph_, graph, 0), 0);
  }
  void launch() { EXPECT_EQ((driver_function<int(void*, void*)>("cuGraphLaunch")(graph_, stream_)), 0); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

 private:
  const CurrentContext context_;
  void* stream_;
  void* graph_ = nullptr;
};

TEST_F(CudaTest, GraphsSumAgainWithEachLaunch) {
  constexpr int kRanks = 2, kLaunches = 1000;
  constexpr std::uint64_t kFloats = 60000;
  std::barrier<> ready(kRanks), over(kRanks);  // see above
  const auto errors = run_ranks({.ranks = kRanks, .options = {}}, [&](Communicator& communicator) {
    Leaving leaving(over);
    const auto device = gpu();
    float* const data = reinterpret_cast<float*>(device->allocate(kFloats * sizeof(float)));
    const gpu::PinnedMemory host = device->pin(kFloats * sizeof(float));
    auto* const floats = reinterpret_cast<float*>(host.host);
    const auto buffer = communicator.register_buffer(data, kFloats * sizeof(float), MemoryKind::device);
    void* const stream = device->make_stream();
    Capture capture(stream);
    device->copy(stream, data, floats, kFloats * sizeof(float));
    Work work = communicator.allreduce({.input = data, .output = data, .count = kFloats, .stream = stream});
    work.enqueue_wait(stream);
    device->copy(stream, floats, data, kFloats * sizeof(float));
    capture.end();
    ready.arrive_and_wait();
    const int made = on_device() ? 0 : driver_function<int()>("fakeCudaMade")();
    for (int launch = 0; launch < kLaunches; ++launch) {
      std::fill_n(floats, kFloats, static_cast<float>(launch + communicator.rank()));
      capture.launch();
      device->synchronize(stream);
      ASSERT_THAT(std::span(floats, kFloats), Each(static_cast<float>(2 * launch + 1))) << launch;
    }
    if (!on_device()) {
      EXPECT_EQ(driver_function<int()>("fakeCudaMade")(), made);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_F(CudaTest, OtherCollectivesHaveTheBitsOfPlainSumsAndCopies) {
  constexpr int kRanks = 3;
  for (const Kind kind : kKinds) {
    for (const std::uint64_t block : {1, 256, 5000}) {
      for (const bool in_place : {true, false}) {
        const Problem p{.type = DataType::int32, .count = 50003, .block = block, .ranks = kRanks};
        const Call call = make_call(kind, 1, p, false);
        std::barrier<> ready(kRanks), over(kRanks);  // see above
        const auto errors = run_ranks({.ranks = kRanks, .options = {}}, [&](Communicator& communicator) {
          const Leaving leaves_ready(ready), leaves_over(over);
          const auto device = gpu();
          void* const stream = device->make_stream();
          const Joined in = input_of(call, communicator.rank()), out = output_of(call, communicator.rank());
          const Contents contents(call, communicator.rank(), in, out, in_place);
          std::byte *const one = device->allocate(contents.one.size()), *const two = device->allocate(
                                                                            contents.two.size());
          const gpu::PinnedMemory result = device->pin(contents.output_bytes + 1);
          const auto first = communicator.register_buffer(one, contents.one.size(), MemoryKind::device);
          const auto second = communicator.register_buffer(two, contents.two.size(), MemoryKind::device);
          const Places places{.input = one + contents.input_at,
                              .output = contents.has_output
                                            ? (contents.output_in_two ? two : one) + contents.output_at
                                            : nullptr,
                              .stream = stream};
          const auto begin = [&] {
            device->copy(stream, one, contents.one.data(), contents.one.size());
            return start(communicator, call, places, {}, false, {});
          };
          begin().wait();  // pins memory
          ready.arrive_and_wait();
          Work work = begin();
          work.enqueue_wait(stream);
          if (gets_result(call, communicator.rank(), kRanks)) {
            device->copy(stream, result.host, places.output, contents.output_bytes);
            device->synchronize(stream);
            EXPECT_EQ(first_difference({result.host, result.host + contents.output_bytes}, out.data), -1)
                << call.text();
          }
          work.wait();
          over.arrive_and_wait();
          device->destroy_stream(stream);
          device->free(one);
          device->free(two);
          device->unpin(result);
        });
        for (const std::string& error : errors) EXPECT_EQ(error, "");
      }
    }
  }
}

/// Whole sparse streams, with a packed result of which only the GPU is told how large it is.
TEST_F(CudaTest, SparseStreamsHaveTheSumsOfTheirElements) {
  constexpr std::size_t kBlocks = 40000, kEach = 3;
  for (const int ranks : {1, 3}) {
    for (const std::uint64_t block : {1, 70}) {
      std::barrier<> ready(ranks), over(ranks);
      const auto errors = run_ranks({.ranks = ranks, .options = {}}, [&](Communicator& communicator) {
        const Leaving leaves_ready(ready), leaves_over(over);
        const auto device = gpu();
        void* const stream = device->make_stream();
        const std::size_t bytes = kBlocks * block * sizeof(float), index_bytes = kBlocks * 4;
        const std::size_t all = bytes + index_bytes + 64;
        const gpu::PinnedMemory from = device->pin(all), to = device->pin(all);
        std::byte *const in = device->allocate(all), *const out = device->allocate(all);
        const auto in_buffer = communicator.register_buffer(in, all, MemoryKind::device);
        const auto out_buffer = communicator.register_buffer(out, all, MemoryKind::device);
        // Every rank has every third block, and block 1 besides. Descending, so that they have to be sorted.
        std::vector<std::int32_t> numbers;
        for (std::size_t b = kBlocks; b-- > 2;) {
          if (b % kEach == 0) numbers.push_back(static_cast<std::int32_t>(b));
        }
        numbers.push_back(1);
        for (std::size_t i = 0; i < numbers.size() * block; ++i)
          reinterpret_cast<float*>(from.host)[i] = static_cast<float>(numbers[i / block] + 1);
        std::memcpy(from.host + bytes, numbers.data(), numbers.size() * 4);
        device->copy(stream, in, from.host, all);
        const auto start = [&] {
          return communicator.allreduce_sparse(
              {.values = in,
               .indices = {in + bytes, numbers.size(), IndexType::int32},
               .count = kBlocks * block,
               .block_elems = block,
               .packed_values = out,
               .packed_capacity = kBlocks,
               .packed_indices = {out + bytes, IndexType::int32},
               .stream = stream,
               .packed_count = reinterpret_cast<std::uint64_t*>(out + bytes + index_bytes)});
        };
        start().wait();  // pins memory
        ready.arrive_and_wait();
        Work work = start();
        work.enqueue_wait(stream);
        device->copy(stream, to.host, out, all);
        device->synchronize(stream);
        std::ranges::reverse(numbers);
        std::uint64_t count = 0;
        std::memcpy(&count, to.host + bytes + index_bytes, sizeof count);
        EXPECT_EQ(count, numbers.size());
        EXPECT_EQ(std::memcmp(to.host + bytes, numbers.data(), numbers.size() * 4), 0);
        for (std::size_t i = 0; i < numbers.size() * block; ++i)
          ASSERT_EQ(reinterpret_cast<float*>(to.host)[i],
                    static_cast<float>((numbers[i / block] + 1) * ranks));
        work.wait();
        over.arrive_and_wait();
        device->destroy_stream(stream);
        device->free(in);
        device->free(out);
        device->unpin(from);
        device->unpin(to);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

/// Steps of a compressor on the GPU, against the same ones on the host.
TEST_F(CudaTest, CompressorsSelectWhatTheySelectOnTheHost) {
  constexpr std::size_t kElements = 150'001, kBytes = kElements * sizeof(float);
  for (const char* text : {"adacomp:500,momentum=0.9", "threshold:1.5+asis", "topk:0.01:exact",
                           "topk:0.01+fp16", "blocktopk:0.05:64,clip=3", "randomk:0.05"}) {
    const Compressor compressor = compressor_from_text(text);
    for (const int ranks : {1, 2}) {
      std::barrier<> ready(ranks), over(ranks);
      const auto errors = run_ranks({.ranks = ranks, .options = {}}, [&](Communicator& communicator) {
        const Leaving leaves_ready(ready), leaves_over(over);
        const auto device = gpu();
        void* const stream = device->make_stream();
        const gpu::PinnedMemory from = device->pin(kBytes), to = device->pin(kBytes);
        std::byte *const in = device->allocate(kBytes), *const out = device->allocate(kBytes);
        const auto buffer = communicator.register_buffer(out, kBytes, MemoryKind::device);
        std::vector<float> expected(kElements);
        const auto host_buffer = communicator.register_buffer(expected.data(), kBytes);
        CompressorState host(compressor, kElements), state(compressor, kElements, GpuOf{in});
        auto* const gradient = reinterpret_cast<float*>(from.host);
        for (int step = 0; step < 3; ++step) {
          for (std::size_t i = 0; i < kElements; ++i) {
            const auto mixed =
                static_cast<std::uint32_t>(i * 2654435761u + static_cast<std::size_t>(step) * 40503u);
            gradient[i] = static_cast<float>(static_cast<int>(mixed % 2001) - 1000) / 700.0f;
          }
          communicator.allreduce_compressed({.state = &host, .input = gradient, .output = expected.data()})
              .wait();
          device->copy(stream, in, from.host, kBytes);
          Work work = communicator.allreduce_compressed({.state = &state,
                                                         .input = reinterpret_cast<float*>(in),
                                                         .output = reinterpret_cast<float*>(out),
                                                         .stream = stream});
          // The first operation pins memory, for which it may wait for the other rank's stream.
          if (step > 0) work.enqueue_wait(stream);
          if (step == 0) work.wait();
          device->copy(stream, to.host, out, kBytes);
          device->synchronize(stream);
          EXPECT_EQ(std::memcmp(to.host, expected.data(), kBytes), 0) << text << " step " << step;
          work.wait();
          if (step == 0) ready.arrive_and_wait();
        }
        over.arrive_and_wait();
        EXPECT_EQ(state.save(), host.save());
        device->destroy_stream(stream);
        device->free(in);
        device->free(out);
        device->unpin(from);
        device->unpin(to);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

/// Operations of sizes that were there before ask the driver for nothing that takes long, or that waits for
/// the GPU: no memory, pinned or not, no stream and no handle.
TEST_F(CudaTest, WarmOperationsMakeNothing) {
  if (on_device()) GTEST_SKIP() << "only the driver in software counts what is made";
  constexpr int kRanks = 2, kWarm = 5, kRounds = 25;
  constexpr std::uint64_t kFloats = 60000, kBlocks = 100;
  std::barrier<> together(kRanks);
  const auto errors = run_ranks({.ranks = kRanks, .options = {}}, [&](Communicator& communicator) {
    const Leaving leaves(together);
    const auto device = gpu();
    void* const stream = device->make_stream();
    const gpu::PinnedMemory zeros = device->pin(2 * kFloats * sizeof(float));
    std::byte* const memory = device->allocate(zeros.bytes);
    const auto buffer = communicator.register_buffer(memory, zeros.bytes, MemoryKind::device);
    auto *const data = reinterpret_cast<float*>(memory), *const result = data + kFloats;
    for (std::uint64_t b = 0; b < kBlocks; ++b)  // what the GPU has: numbers of blocks, and zeros
      reinterpret_cast<std::int32_t*>(zeros.host)[b] = static_cast<std::int32_t>(b);
    device->copy(stream, memory, zeros.host, zeros.bytes);
    CompressorState state(compressor_from_text("topk:0.01"), kFloats, GpuOf{data});
    SparseAllreduceRequest sparse{.values = data + kBlocks, .count = kFloats, .block_elems = 1};
    sparse.indices = {memory, kBlocks, IndexType::int32};
    sparse.packed_values = result;
    sparse.packed_capacity = kFloats / 2;
    sparse.packed_indices = {reinterpret_cast<std::byte*>(result + kFloats / 2), IndexType::int32};
    sparse.stream = stream;
    const std::uint64_t part = kFloats / kRanks;
    const std::vector<std::function<Work()>> calls{
        [&] {
          return communicator.allreduce(
              {.input = data, .output = result, .count = kFloats, .stream = stream});
        },
        [&] {
          return communicator.allreduce(
              {.input = data, .output = result, .count = 1000, .block_elems = 1, .stream = stream});
        },
        [&] {  // in tiles
          return communicator.allreduce(
              {.input = data, .output = result, .count = kFloats, .block_elems = 1, .stream = stream});
        },
        [&] { return communicator.broadcast({.data = result, .count = kFloats, .stream = stream}); },
        [&] {
          return communicator.reduce({.input = data, .output = result, .count = kFloats, .stream = stream});
        },
        [&] {
          return communicator.reduce_scatter(
              {.input = data, .output = result, .count = part, .stream = stream});
        },
        [&] {
          return communicator.allgather({.input = data, .output = result, .count = part, .stream = stream});
        },
        [&] { return communicator.allreduce_sparse(sparse); },
        [&] {
          return communicator.allreduce_compressed(
              {.state = &state, .input = data, .output = result, .stream = stream});
        }};
    int made = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (round == kWarm) {
        together.arrive_and_wait();
        made = driver_function<int()>("fakeCudaMade")();
        together.arrive_and_wait();
      }
      for (const auto& call : calls) {
        Work work = call();
        work.enqueue_wait(stream);
        work.wait();
      }
    }
    EXPECT_EQ(driver_function<int()>("fakeCudaMade")(), made);
    EXPECT_GT(communicator.statistics().gpu_sums, 0u);  // those of GPUs are among them
    together.arrive_and_wait();
    device->destroy_stream(stream);
    device->free(memory);
    device->unpin(zeros);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The GPU stops, as after an illegal access, or its context is destroyed by another part of the program:
/// that is the error of what is in flight, and of every later call.
TEST_F(CudaTest, ZGpuThatBreaksFailsTheOperation) {
  if (on_device()) GTEST_SKIP() << "only the driver in software breaks when it is told to";
  const auto break_down = driver_function<int(int)>("fakeCudaBreak");
  for (const auto& [code, name, sentence] :
       {std::tuple(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"),
        std::tuple(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed")}) {
    const auto says_so = AllOf(HasSubstr(name), HasSubstr(sentence));
    std::barrier<> begun(2);
    const auto errors = run_ranks({.ranks = 2, .options = {}}, [&, code = code](Communicator& communicator) {
      const Leaving leaves(begun);
      const auto device = gpu();
      float* const data = reinterpret_cast<float*>(device->allocate(400000));
      const auto buffer = communicator.register_buffer(data, 400000, MemoryKind::device);
      void* const stream = device->make_stream();
      const gpu::Flag flag = device->take_flag();
      device->await(stream, flag.device, flag.value);
      const AllreduceRequest request{.input = data, .output = data, .count = 100000, .stream = stream};
      Work work = communicator.allreduce(request);
      begun.arrive_and_wait();
      if (communicator.rank() == 0) break_down(code);
      EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), says_so);
      EXPECT_THAT(thrown_by([&] { static_cast<void>(communicator.allreduce(request)); }).what(), says_so);
      const Error error =
          thrown_by([&] { static_cast<void>(communicator.register_buffer(data, 1000, MemoryKind::device)); });
      EXPECT_EQ(error.code(), ErrorCode::system);
      EXPECT_THAT(error.what(), says_so);
      flag.raise_here();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    break_down(0);
  }
}

}  // namespace
}  // namespace nzcl::test
