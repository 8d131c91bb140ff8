// Which memory is a GPU's, as CUDA's driver says, and what comes of memory that there is none left of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/gpu/find_gpu.h"
#include "tests/system/failing.h"
#include "tests/system/on_cuda.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using gpu::cuda::Context;
using gpu::cuda::DevicePointer;
using testing::AllOf;
using testing::HasSubstr;

class CudaMemory : public CudaTest {};

TEST_F(CudaMemory, IsKnownByItsRange) {
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

/// Memory that no kernel of nzcl's may use is refused at registration, in words that say what to do.
TEST_F(CudaMemory, OfOtherKindsIsRefusedByName) {
  if (on_device()) GTEST_SKIP() << "only the driver in software has memory of every kind";
  std::byte* const memory = gpu()->allocate(10000);
  const auto declare = [&](unsigned managed, Context context, int ordinal) {
    const auto at = reinterpret_cast<DevicePointer>(memory);
    EXPECT_EQ(driver_function<int(DevicePointer, unsigned, Context, int)>("fakeCudaDeclare")(
                  at, managed, context, ordinal),
              gpu::cuda::kSuccess);
  };
  std::uintptr_t some = 0;
  const auto other = reinterpret_cast<Context>(&some);
  run_ranks({.ranks = 1, .options = {}}, [&](Communicator& communicator) {
    const auto refusal = [&] {
      const Error error = thrown_by(
          [&] { static_cast<void>(communicator.register_buffer(memory, 10000, MemoryKind::device)); });
      return std::string(name_of(error.code())) + ": " + error.what();
    };
    declare(1, nullptr, 0);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("unsupported"), HasSubstr("are managed memory"),
                                 HasSubstr("allocate it with cudaMalloc")));
    declare(0, other, 0);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("unsupported"), HasSubstr("not their GPU's primary one")));
    declare(0, nullptr, 0);  // as that of a memory pool
    EXPECT_NO_THROW(static_cast<void>(communicator.register_buffer(memory, 10000, MemoryKind::device)));
  });
  gpu()->free(memory);
}

/// Addresses at which pieces of memory are mapped one behind the other, as virtual memory and what allocators
/// of frameworks call expandable segments. One segment may be left out.
class Segments {
 public:
  Segments(std::size_t count, std::size_t without) {
    EXPECT_EQ(driver_function<int(std::size_t*, const void*, int)>("cuMemGetAllocationGranularity")(
                  &each_, &properties_, 0),
              0);
    bytes_ = count * each_;
    EXPECT_EQ(
        driver_function<int(DevicePointer*, std::size_t, std::size_t, DevicePointer, unsigned long long)>(
            "cuMemAddressReserve")(&at_, bytes_, 0, 0, 0),
        0);
    for (std::size_t segment = 0; segment < count; ++segment) {
      if (segment != without) map(at_ + segment * each_);
    }
  }
  ~Segments() {
    for (const auto& [at, handle] : mapped_) {
      EXPECT_EQ(driver_function<int(DevicePointer, std::size_t)>("cuMemUnmap")(at, each_), 0);
      EXPECT_EQ(driver_function<int(unsigned long long)>("cuMemRelease")(handle), 0);
    }
    EXPECT_EQ(driver_function<int(DevicePointer, std::size_t)>("cuMemAddressFree")(at_, bytes_), 0);
  }
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(at_); }
  std::size_t each() const { return each_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr int kDevice = 1, kPinned = 1, kReadAndWrite = 3;
  struct Location {
    int type = kDevice, ordinal = 0;
  };
  struct Properties {  // CUmemAllocationProp
    int type = kPinned, handles = 0;
    Location location;
    void* metadata = nullptr;
    std::array<unsigned char, 8> flags{};
  };
  struct Access {  // CUmemAccessDesc
    Location location;
    int flags = kReadAndWrite;
  };

  void map(DevicePointer at) {
    unsigned long long handle = 0;
    EXPECT_EQ(driver_function<int(unsigned long long*, std::size_t, const void*, unsigned long long)>(
                  "cuMemCreate")(&handle, each_, &properties_, 0),
              0);
    EXPECT_EQ(
        driver_function<int(DevicePointer, std::size_t, std::size_t, unsigned long long, unsigned long long)>(
            "cuMemMap")(at, each_, 0, handle, 0),
        0);
    const Access access;
    EXPECT_EQ(driver_function<int(DevicePointer, std::size_t, const void*, std::size_t)>("cuMemSetAccess")(
                  at, each_, &access, 1),
              0);
    mapped_.emplace_back(at, handle);
  }

  const CurrentContext context_;
  const Properties properties_;
  std::size_t each_ = 0, bytes_ = 0;
  DevicePointer at_ = 0;
  std::vector<std::pair<DevicePointer, unsigned long long>> mapped_;
};

/// A hole between segments is found at registration, wherever in the range it is.
TEST_F(CudaMemory, OfSegmentsMayHaveNoHole) {
  EXPECT_NE(gpu(), nullptr);
  for (const std::size_t hole : {0, 1, 2}) {
    const Segments segments(3, hole);
    run_ranks({.ranks = 1, .options = {}}, [&](Communicator& communicator) {
      const Error error = thrown_by([&] {
        static_cast<void>(
            communicator.register_buffer(segments.data(), segments.bytes(), MemoryKind::device));
      });
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << hole;
      EXPECT_THAT(error.what(),
                  HasSubstr(hole == 0 ? "are no memory of a GPU" : "longer than what is allocated"));
    });
  }
}

/// Tensors that lie in several segments, at no page's beginning and at no multiple of what a kernel reads at
/// once, are reduced as any others, and what is around them stays as it was.
TEST_F(CudaMemory, OfSegmentsIsReducedAtAnyOffset) {
  constexpr int kRanks = 2;
  EXPECT_NE(gpu(), nullptr);
  for (const std::size_t offset : {std::size_t{4}, std::size_t{12}, std::size_t{4096 - 20}}) {
    std::barrier<> ready(kRanks), over(kRanks);
    const auto errors = run_ranks({.ranks = kRanks, .options = {}}, [&](Communicator& communicator) {
      const Leaving leaves_ready(ready), leaves_over(over);
      const Segments segments(4, 4);
      // From within the first segment to within the last one.
      const Problem p{.count = (3 * segments.each() - 2 * offset) / 4 + 1, .block = 250, .ranks = kRanks};
      const Expected expected = make_expected(p);
      const auto device = gpu();
      void* const stream = device->make_stream();
      std::byte* const memory = segments.data() + segments.each() / 2 / 16 * 16 + offset;
      ASSERT_LT(memory + p.bytes(), segments.data() + segments.bytes());
      const gpu::PinnedMemory all = device->pin(segments.bytes());
      const auto before = memory - segments.data();
      const auto data = make_input(p, communicator.rank());
      const auto buffer = communicator.register_buffer(memory, p.bytes(), MemoryKind::device);
      for (int i = 0; i < 4; ++i) {
        std::fill_n(all.host, all.bytes, std::byte{0x77});
        std::ranges::copy(data, all.host + before);
        device->copy(stream, segments.data(), all.host, all.bytes);
        Work work = communicator.allreduce(
            {.input = memory, .output = memory, .count = p.count, .block_elems = p.block, .stream = stream});
        if (i == 0) work.wait();  // pins memory
        if (i == 0) ready.arrive_and_wait();
        work.enqueue_wait(stream);
        device->copy(stream, all.host, segments.data(), all.bytes);
        device->synchronize(stream);
        work.wait();
        EXPECT_EQ(first_difference({all.host + before, all.host + before + p.bytes()}, expected.data), -1)
            << offset << ", " << i;
        EXPECT_EQ(std::count(all.host, all.host + all.bytes, std::byte{0x77}) -
                      std::count(all.host + before, all.host + before + static_cast<long>(p.bytes()),
                                 std::byte{0x77}),
                  static_cast<long>(all.bytes - p.bytes()));
      }
      over.arrive_and_wait();
      device->destroy_stream(stream);
      device->unpin(all);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// No memory is left to pin, or on the GPU: the call says so in the driver's words, nobody waits for it, and
/// the communicator goes on when there is some again.
TEST_F(CudaMemory, ThatIsUsedUpIsAnErrorOfTheCall) {
  if (on_device()) GTEST_SKIP() << "only the driver in software runs out of memory when it is told to";
  constexpr std::uint64_t kFloats = 100000;
  const auto fill = driver_function<int(int gpu, int pinned)>("fakeCudaFill");
  const auto out_of_memory = AllOf(HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"), HasSubstr("out of memory"));
  std::barrier<> step(2);
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
    const Leaving leaves(step);
    const auto device = gpu();
    void* const stream = device->make_stream();
    const gpu::PinnedMemory host = device->pin(kFloats * 4);
    auto* const floats = reinterpret_cast<float*>(host.host);
    auto* const data = reinterpret_cast<float*>(device->allocate(kFloats * 4));
    const auto buffer = communicator.register_buffer(data, kFloats * 4, MemoryKind::device);
    std::fill_n(floats, kFloats, 1.0f);
    device->copy(stream, data, floats, kFloats * 4);
    const AllreduceRequest request{.input = data, .output = data, .count = kFloats, .stream = stream};
    step.arrive_and_wait();
    fill(1, 1);
    EXPECT_THAT(thrown_by([&] { static_cast<void>(communicator.allreduce(request)); }).what(), out_of_memory);
    EXPECT_THAT(
        thrown_by([&] { CompressorState(compressor_from_text("topk:0.01"), kFloats, GpuOf{data}); }).what(),
        out_of_memory);
    step.arrive_and_wait();
    fill(1, 0);  // so no rank has slots on its GPU, in which GPUs sum, and the host does
    for (int i = 0; i < 5; ++i) communicator.allreduce(request).wait();
    EXPECT_EQ(communicator.statistics().gpu_sums, 0u);
    step.arrive_and_wait();
    fill(0, 0);
    device->copy(stream, floats, data, kFloats * 4);
    device->synchronize(stream);
    EXPECT_EQ(std::count(floats, floats + kFloats, 32.0f), static_cast<long>(kFloats));
    step.arrive_and_wait();
    device->destroy_stream(stream);
    device->free(reinterpret_cast<std::byte*>(data));
    device->unpin(host);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test
