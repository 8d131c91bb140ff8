#include <atomic>

#include "runtime/gpu/gpu.h"

namespace nzcl::gpu {
namespace {

/// Flags are made a page at a time, each in a cache line of its own.
constexpr std::size_t kPageBytes = 4096, kFlagBytes = 64;

}  // namespace

void Flag::raise_here() const { std::atomic_ref(*host).store(value, std::memory_order_release); }

void Flag::lower_here() const { std::atomic_ref(*host).store(value - 1, std::memory_order_release); }

bool Flag::is_raised() const {
  const std::uint32_t seen = std::atomic_ref(*host).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(seen - value) >= 0;
}

Flag Gpu::take_flag() {
  const std::scoped_lock lock(flag_mutex_);
  if (flags_.empty()) {
    const PinnedMemory page = pin(kPageBytes);
    for (std::size_t at = 0; at < kPageBytes; at += kFlagBytes) {
      auto* const host = reinterpret_cast<std::uint32_t*>(page.host + at);
      flags_.push_back({.host = host, .device = page.seen(host)});
    }
  }
  Flag flag = flags_.back();
  flags_.pop_back();
  ++flag.value;
  return flag;
}

void Gpu::give_back(const Flag& flag) {
  const std::scoped_lock lock(flag_mutex_);
  flags_.push_back(flag);
}

}  // namespace nzcl::gpu
