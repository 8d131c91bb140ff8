#include <cstring>
#include <vector>

#include "perf/kernels/beside.h"
#include "perf/plain_loops.h"
#include "runtime/base/cold_memory.h"

namespace perf::kernels {
namespace {

/// The size of a message, which stays in a cache while the large buffer passes through it.
constexpr std::size_t kMessage = 64 << 10;

/// Calls work(memory, message) for every kMessage of `memory`, always with the same message.
template <class Work>
void over(std::vector<std::byte>& memory, std::vector<std::byte>& message, Work work) {
  for (std::size_t i = 0; i + kMessage <= memory.size(); i += kMessage) work(&memory[i], message.data());
  benchmark::ClobberMemory();
}

template <class Kernel, class Plain>
void add(const char* name, Kernel kernel, Plain plain) {
  const auto run = [=](benchmark::State& state) {
    std::vector<std::byte> memory(bytes_out_of_cache() / kMessage * kMessage), message(kMessage);
    beside(
        state, memory.size(), [&] { over(memory, message, kernel); }, memory.size(),
        [&] { over(memory, message, plain); });
  };
  benchmark::RegisterBenchmark(name, run)->UseManualTime()->Unit(benchmark::kMillisecond);
}

}  // namespace

void register_copies() {
  add(
      "copy/to_memory",
      [](std::byte* memory, const std::byte* message) {
        nzcl::prefetch_to_write(memory, kMessage);
        nzcl::copy_cold(memory, message, kMessage);
      },
      [](std::byte* memory, const std::byte* message) { std::memcpy(memory, message, kMessage); });
  add(
      "copy/from_memory",
      [](const std::byte* memory, std::byte* message) {
        nzcl::prefetch_to_read(memory, kMessage);
        nzcl::copy_cold(message, memory, kMessage);
      },
      [](const std::byte* memory, std::byte* message) { std::memcpy(message, memory, kMessage); });
  add(
      "zero/memory",
      [](std::byte* memory, const std::byte*) {
        nzcl::prefetch_to_write(memory, kMessage);
        nzcl::zero_cold(memory, kMessage);
      },
      [](std::byte* memory, const std::byte*) { std::memset(memory, 0, kMessage); });
}

}  // namespace perf::kernels
