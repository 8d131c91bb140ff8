#include "tests/process/scribbler.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

struct Mapping {
  std::uintptr_t begin, end;
};

/// The parts of this process's memory that it can write and that other processes may see.
std::vector<Mapping> shared_mappings() {
  std::vector<Mapping> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char mode[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) == 3 && std::string(mode) == "rw-s")
      found.push_back({begin, end});
  }
  return found;
}

/// Writes where `mapping` is, or was a moment ago: the kernel writes for us, and refuses what is not mapped
/// any more.
void scribble(const Mapping& mapping, std::mt19937& random) {
  std::uint64_t bytes[8];
  for (auto& word : bytes) word = random();
  // Heads and tails of rings are at the beginning, and little of the rest is ever used.
  const std::size_t range =
      std::min<std::size_t>(mapping.end - mapping.begin, random() % 2 != 0 ? 4096 : 1 << 20);
  const std::size_t at = random() % range & ~std::size_t{7};
  const std::size_t size = std::min<std::size_t>(8u << random() % 4, range - at);
  const iovec from{bytes, size}, to{reinterpret_cast<void*>(mapping.begin + at), size};
  (void)!::process_vm_writev(::getpid(), &from, 1, &to, 1, 0);
}

void scribble_when_told(const std::stop_token& stop) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  const timespec soon{0, 100'000'000};
  while (::sigtimedwait(&signals, nullptr, &soon) != SIGUSR1)
    if (stop.stop_requested()) return;
  std::mt19937 random(static_cast<unsigned>(::getpid()));
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < end) {
    const auto mappings = shared_mappings();
    for (int i = 0; i < 10 && !mappings.empty(); ++i) scribble(mappings[random() % mappings.size()], random);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::puts("scribbled");
  std::fflush(stdout);
}

}  // namespace

Scribbler::Scribbler() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::jthread(scribble_when_told);
}

Scribbler::~Scribbler() = default;
