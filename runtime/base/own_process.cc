#include "runtime/base/own_process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace nzcl {
namespace {

/// How many forks lie between the process that first made an OwnProcess and this one. It is a global variable
/// because fork() calls its handlers without an argument. Only that handler changes it, in the child, which
/// then has a single thread.
std::atomic<std::uint64_t> generation{0};

std::uint64_t current_generation() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { generation.store(generation.load(std::memory_order_relaxed) + 1); });
  return generation.load(std::memory_order_relaxed);
}

}  // namespace

OwnProcess::OwnProcess() : generation_(current_generation()), id_(::getpid()) {}

bool OwnProcess::is_current() const noexcept {
  return generation_ == generation.load(std::memory_order_relaxed);
}

}  // namespace nzcl
