// An emulated GPU keeps the promises of a real one that code could break without noticing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "runtime/gpu/emulated/emulated_gpu.h"
#include "runtime/gpu/find_gpu.h"

namespace nzcl::gpu {
namespace {

using testing::HasSubstr;

std::uint32_t value_of(std::uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

TEST(EmulatedGpu, HostCannotTouchItsMemory) {
  const auto gpu = EmulatedGpu::make();
  std::byte* const memory = gpu->allocate(4096);
  constexpr int kRead = 42;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    volatile const std::byte seen = *memory;
    static_cast<void>(seen);
    ::_exit(kRead);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == kRead);  // a sanitizer exits, too
}

TEST(EmulatedGpu, WorkHappensInOrderAndLater) {
  const auto gpu = EmulatedGpu::make();
  const Stream stream = gpu->make_stream();
  std::byte* const memory = gpu->allocate(4096);
  const PinnedMemory pinned = gpu->pin(4096);
  auto* const flag = reinterpret_cast<std::uint32_t*>(pinned.host);
  std::vector<std::byte> out(4096), in(4096, std::byte{7});
  gpu->await(stream, pinned.seen(flag), 5);
  gpu->copy(stream, memory, in.data(), in.size());
  gpu->copy(stream, out.data(), memory, out.size());
  gpu->raise(stream, pinned.seen(flag + 1), 9);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(value_of(flag[1]), 0u);  // the host has not raised the flag
  EXPECT_NE(out, in);
  std::fill(in.begin(), in.end(), std::byte{8});  // a copy reads what is there when the stream comes to it
  std::atomic_ref(*flag).store(6);
  gpu->synchronize(stream);
  EXPECT_EQ(value_of(flag[1]), 9u);
  EXPECT_EQ(out, std::vector(4096, std::byte{8}));
}

TEST(EmulatedGpu, FlagsAreComparedInCyclicOrder) {
  const auto gpu = EmulatedGpu::make();
  const Stream stream = gpu->make_stream();
  const PinnedMemory pinned = gpu->pin(64);
  auto* const flag = reinterpret_cast<std::uint32_t*>(pinned.host);
  *flag = 3;
  gpu->await(stream, pinned.seen(flag), 0xfffffff0);
  gpu->synchronize(stream);
}

TEST(EmulatedGpu, EndsAlthoughNobodyRaisesAFlag) {
  const auto gpu = EmulatedGpu::make();
  const Stream stream = gpu->make_stream();
  const PinnedMemory pinned = gpu->pin(64);
  gpu->await(stream, pinned.device ? reinterpret_cast<std::uint32_t*>(pinned.device) : nullptr, 1);
  gpu->destroy_stream(stream);
}

TEST(EmulatedGpu, RefusesAddressesThatAreNotItsOwn) {
  const auto gpu = EmulatedGpu::make();
  const PinnedMemory pinned = gpu->pin(4096);
  std::vector<std::byte> host(4096);
  PackJob job{.shape = {.bytes = 4096, .block_bytes = 64, .slice_blocks = 64},
              .tensor = gpu->allocate(4096),
              .packed = pinned.device,
              .bits = reinterpret_cast<std::uint64_t*>(pinned.device),
              .flags = reinterpret_cast<std::uint32_t*>(pinned.device)};
  EXPECT_NO_THROW(gpu->pack(nullptr, job));
  job.packed = pinned.host;  // the host's address, which a GPU may not know
  EXPECT_THROW(gpu->pack(nullptr, job), Error);
  job.packed = pinned.device + 1;
  EXPECT_THROW(gpu->pack(nullptr, job), Error);
  job.packed = pinned.device;
  job.tensor = host.data();
  EXPECT_THROW(gpu->pack(nullptr, job), Error);
  EXPECT_THROW(gpu->synchronize(&host), Error);
}

TEST(EmulatedGpu, SaysWhatAPointerIs) {
  const auto gpu = EmulatedGpu::make(), other = EmulatedGpu::make();
  std::byte* const memory = gpu->allocate(5000);
  std::vector<std::byte> host(4096);
  EXPECT_EQ(find_gpu({memory + 10, 4990}), gpu);
  EXPECT_EQ(EmulatedGpu::owner_of(host), nullptr);
  EXPECT_FALSE(is_gpu_memory(host));
  EXPECT_TRUE(is_gpu_memory({memory + 10, 10000}));
  EXPECT_THROW(static_cast<void>(find_gpu({memory + 10, 4991})), Error);
  gpu->free(memory);
  EXPECT_EQ(EmulatedGpu::owner_of({memory, 1}), nullptr);
}

TEST(EmulatedGpu, DoesNothingOnceItIsBroken) {
  const auto gpu = EmulatedGpu::make();
  const Stream stream = gpu->make_stream();
  EXPECT_EQ(gpu->why_broken(stream), std::nullopt);
  gpu->break_down("CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_THAT(gpu->why_broken(stream).value(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_THROW(gpu->synchronize(stream), Error);
}

}  // namespace
}  // namespace nzcl::gpu
