// CudaGpu over a driver in software: every call of it is made as the driver's documentation asks for, and
// whole allreduces go through. With DEVICE_CHECK=1 in the environment the driver is the machine's own, and
// what only the one in software can do is skipped (scripts/device-check).
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/cuda/cuda_memory.h"
#include "runtime/gpu/cuda/ptx.h"
#include "runtime/gpu/find_gpu.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Opens the driver in software before anybody asks for the real one. It has the same name, so the system's
/// loader finds that it is there already.
void* fake() {
  static void* const library = ::dlopen(NZCL_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  return library;
}

bool on_device() { return std::getenv("DEVICE_CHECK") != nullptr; }

/// A rank that leaves early keeps nobody waiting.
struct Leaving {
  explicit Leaving(std::barrier<>& of) : barrier(of) {}
  ~Leaving() { barrier.arrive_and_drop(); }
  std::barrier<>& barrier;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    // Streams of a process share 8 queues otherwise, and here those of one rank would wait for another one's.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (!on_device()) {
      ASSERT_NE(fake(), nullptr) << ::dlerror();
    }
    if (*gpu::kPtx == '\0') GTEST_SKIP() << "this build has no kernels for GPUs (package clang)";
  }
  static std::shared_ptr<gpu::CudaGpu> gpu() { return gpu::CudaGpu::number(gpu::CudaDriver::open(), 0); }
  static int registered() { return reinterpret_cast<int (*)()>(::dlsym(fake(), "fakeCudaRegistered"))(); }
};

TEST_F(CudaTest, SaysWhichGpusThereAre) {
  if (on_device()) GTEST_SKIP() << "what is expected is the driver in software's";
  EXPECT_THAT(gpu::describe_gpus(),
              ElementsAre("GPU 0: Fake GPU, compute capability 9.0", "driver for CUDA 12.2"));
  EXPECT_EQ(gpu()->name(), "GPU 0: Fake GPU, compute capability 9.0");
}

TEST_F(CudaTest, KnowsItsMemory) {
  std::byte* const memory = gpu()->allocate(10000);
  std::vector<std::byte> host(10000);
  EXPECT_EQ(gpu::find_gpu({memory + 1, 9999}), gpu());
  EXPECT_TRUE(gpu::is_gpu_memory({memory, 1}));
  EXPECT_FALSE(gpu::is_gpu_memory(host));
  EXPECT_THROW(static_cast<void>(gpu::find_gpu(host)), Error);
  EXPECT_THROW(static_cast<void>(gpu::find_gpu({memory + 1, std::size_t{1} << 40})), Error);
  gpu()->free(memory);
  EXPECT_FALSE(gpu::is_gpu_memory({memory, 1}));
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
            Work work = start();
            work.enqueue_wait(stream);
            device->copy(stream, result.host, output, p.bytes());
            device->synchronize(stream);
            EXPECT_EQ(first_difference({result.host, result.host + p.bytes()}, expected.data), -1)
                << p.text();
            work.wait();
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

/// The last test: the driver does not recover, as after an illegal access.
TEST_F(CudaTest, ZGpuThatBreaksFailsTheOperation) {
  if (on_device()) GTEST_SKIP() << "only the driver in software breaks when it is told to";
  std::barrier<> begun(2);
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
    const Leaving leaves(begun);
    const auto device = gpu();
    float* const data = reinterpret_cast<float*>(device->allocate(400000));
    const auto buffer = communicator.register_buffer(data, 400000, MemoryKind::device);
    void* const stream = device->make_stream();
    const gpu::Flag flag = device->take_flag();
    device->await(stream, flag.device, flag.value);
    Work work = communicator.allreduce({.input = data, .output = data, .count = 100000, .stream = stream});
    begun.arrive_and_wait();
    if (communicator.rank() == 0) reinterpret_cast<int (*)(int)>(::dlsym(fake(), "fakeCudaBreak"))(700);
    try {
      work.wait();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(),
                  AllOf(HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"), HasSubstr("an illegal memory access")));
    }
    flag.raise_here();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test
