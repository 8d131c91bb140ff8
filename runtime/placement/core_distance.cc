#include "runtime/placement/core_distance.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/base/block_signals.h"
#include "runtime/kernels/stream_copy.h"

namespace nzcl::placement {
namespace {

using Clock = std::chrono::steady_clock;

void run_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set); error != 0)
    throw std::system_error(error, std::generic_category(), "CPU " + std::to_string(cpu));
}

/// Waits until the counter has the value. Gives the core away now and then, in case both threads share it.
void wait_for(const std::atomic<long>& counter, long value) {
  for (int i = 1; counter.load(std::memory_order_acquire) < value; ++i) {
    if (i % 4096 == 0) std::this_thread::yield();
  }
}

/// Runs both at once, each on its core, and returns the seconds that `here` took, which ends last.
template <typename Here, typename There>
double seconds(const CpuPair& pair, Here here, There there) {
  double elapsed = 0;
  std::atomic<long> ready{0};
  std::exception_ptr failed;
  const BlockSignals blocked;
  const auto on = [&](int cpu, auto body) {
    return std::thread([&, cpu, body] {
      try {
        run_on(cpu);
      } catch (...) {
        failed = std::current_exception();
      }
      ++ready;
      wait_for(ready, 2);
      if (!failed) body();
    });
  };
  std::thread other = on(pair.second, [&] {
    const auto begin = Clock::now();
    there();
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  });
  on(pair.first, here).join();
  other.join();
  if (failed) std::rethrow_exception(failed);
  return elapsed;
}

}  // namespace

double round_trip_ns(const CpuPair& pair) {
  constexpr long kTrips = 4000;
  std::array<double, 9> batches;
  for (double& batch : batches) {
    alignas(64) std::atomic<long> there{0};
    alignas(64) std::atomic<long> back{0};
    const double time = seconds(
        pair,
        [&] {
          for (long i = 1; i <= kTrips; ++i) there.store(i, std::memory_order_release), wait_for(back, i);
        },
        [&] {
          for (long i = 1; i <= kTrips; ++i) wait_for(there, i), back.store(i, std::memory_order_release);
        });
    batch = time / kTrips * 1e9;
  }
  std::ranges::sort(batches);
  return batches[batches.size() / 2];
}

double message_gbs(const CpuPair& pair, Storing storing) {
  constexpr std::size_t kMessage = 128 << 10, kBuffers = 8;
  constexpr long kMessages = 256;
  const std::vector<std::byte> source(kMessage * kMessages, std::byte{1});
  std::vector<std::byte> target(source.size(), std::byte{2}), ring(kMessage * kBuffers);
  alignas(64) std::atomic<long> written{0};
  alignas(64) std::atomic<long> read{0};
  const double time = seconds(
      pair,
      [&] {
        for (long i = 0; i < kMessages; ++i) {
          wait_for(read, i + 1 - static_cast<long>(kBuffers));
          std::byte* to = &ring[static_cast<std::size_t>(i) % kBuffers * kMessage];
          const std::byte* from = &source[static_cast<std::size_t>(i) * kMessage];
          storing == Storing::streamed ? copy_past_caches(to, from, kMessage)
                                       : static_cast<void>(std::memcpy(to, from, kMessage));
          written.store(i + 1, std::memory_order_release);
        }
      },
      [&] {
        for (long i = 0; i < kMessages; ++i) {
          wait_for(written, i + 1);
          std::memcpy(&target[static_cast<std::size_t>(i) * kMessage],
                      &ring[static_cast<std::size_t>(i) % kBuffers * kMessage], kMessage);
          read.store(i + 1, std::memory_order_release);
        }
      });
  return static_cast<double>(source.size()) / time / 1e9;
}

std::string describe_core_distance(const CpuPair& pair) {
  const double trip = round_trip_ns(pair);
  const double cached = message_gbs(pair, Storing::cached), streamed = message_gbs(pair, Storing::streamed);
  return fmt::format(
      "CPUs {} and {}: a cache line takes {:.0f} ns there and back; messages between them go at {:.2f} GB/s "
      "when they are stored in caches, and at {:.2f} GB/s when they are streamed past them",
      pair.first, pair.second, trip, cached, streamed);
}

}  // namespace nzcl::placement
