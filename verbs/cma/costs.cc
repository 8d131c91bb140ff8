#include "verbs/cma/costs.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace nzcl::verbs::cma {
namespace {

constexpr std::size_t kSmall = 64, kLarge = 128 << 10;
constexpr std::size_t kRounds = 21, kPlaces = 32;

using Samples = std::array<double, kRounds>;

double median(Samples samples) {
  std::ranges::nth_element(samples, samples.begin() + kRounds / 2);
  return samples[kRounds / 2];
}

/// Times a way to write at one place after another of a buffer that is larger than the caches of one core.
class Bench {
 public:
  template <typename Write>
  double ns(std::size_t bytes, Write write) {
    std::byte* to = &buffer_[place_++ % kPlaces * kLarge];
    const auto begin = Clock::now();
    write(to, source_.data(), bytes);
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
  }

 private:
  const std::vector<std::byte> source_ = std::vector<std::byte>(kLarge, std::byte{1});
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kLarge * kPlaces);
  std::size_t place_ = 0;
};

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  asm volatile("" ::"r"(to) : "memory");  // keeps the compiler from removing the copy
}

void attach(std::byte* to, const std::byte* from, std::size_t bytes) {
  const iovec source{const_cast<std::byte*>(from), bytes}, target{to, bytes};
  [[maybe_unused]] const auto n = ::process_vm_writev(::getpid(), &source, 1, &target, 1, 0);
}

}  // namespace

Costs measure_costs() {
  // The two ways alternate, and only their ratio counts, because other processes that start at the same time
  // slow both down alike.
  Bench bench;
  Samples small, large;
  for (std::size_t i = 0; i < kRounds; ++i) {
    const double copied = bench.ns(kLarge, copy);
    small[i] = bench.ns(kSmall, attach) / copied;
    large[i] = bench.ns(kLarge, attach) / copied;
  }
  return {.segment = 0, .write = median(small) * kLarge, .foreign_byte = median(large) - median(small)};
}

}  // namespace nzcl::verbs::cma
