// What tests of failures and of order have in common: floats in memory of an emulated GPU.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "nzcl/communicator.h"
#include "tests/system/failing.h"
#include "tests/system/on_gpu.h"

namespace nzcl::test {

inline constexpr std::uint64_t kCount = 20000;

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
  /// The values when the GPU's stream has come here.
  std::vector<float> read(OnGpu& on) const {
    const auto bytes = on.read(reinterpret_cast<const std::byte*>(data), ones.size() * sizeof(float));
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    return {values, values + ones.size()};
  }
  std::vector<float> ones;
  float* data;
  RegisteredBuffer buffer;
};

/// Whether the stream has come to its end within a time that no failure may take.
inline bool ends(OnGpu& on, void* stream) {
  std::atomic<bool> ended{false};
  std::jthread waiting([&] {
    on.gpu().synchronize(stream);
    ended = true;
  });
  for (int i = 0; i < 6000 && !ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (!ended) std::abort();  // the thread would never be joined
  return true;
}

/// The last rank aborts while the streams of the others wait for an allreduce: they go on, and the others
/// learn why.
inline void abort_while_others_wait(Communicator& c, OnGpu& on, const GpuFloats& floats) {
  if (c.rank() == c.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return c.abort("enough");
  }
  Work work = c.allreduce(floats.request(on.stream()));
  work.enqueue_wait(on.stream());
  EXPECT_TRUE(ends(on, on.stream()));
  EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), testing::HasSubstr("enough"));
  EXPECT_NO_THROW(work.enqueue_wait(on.stream()));  // it is over, so this waits for nothing
  EXPECT_TRUE(ends(on, on.stream()));
}

}  // namespace nzcl::test
