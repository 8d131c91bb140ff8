// What a block of threads, a warp and a lane are on the CPU: see bodies.h. One thread takes the part of all
// lanes, in turn. Where the kernels have a barrier, it has been everywhere before it goes on.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/gpu/kernels/bodies.h"

namespace nzcl::gpu {

class CpuWarp {
 public:
  CpuWarp(unsigned index, unsigned count) : index_(index), count_(count) {}
  unsigned index() const { return index_; }
  unsigned count() const { return count_; }
  template <unsigned kBits>
  unsigned any(auto f) {
    unsigned found = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) found |= f(lane);
    return found;
  }
  void each_lane(auto f) {
    for (unsigned lane = 0; lane < kLanes; ++lane) f(lane);
  }
  void once(auto f) { f(); }

 private:
  unsigned index_, count_;
};

class CpuBlock {
 public:
  /// `words` has shared_bytes().
  CpuBlock(std::uint64_t index, std::uint64_t* words) : index_(index), words_(words) {}
  std::uint64_t index() const { return index_; }
  std::uint64_t* words() const { return words_; }
  void each(std::uint32_t n, auto f) {
    for (std::uint32_t i = 0; i < n; ++i) f(i);
  }
  void each_warp(auto f) {
    constexpr unsigned kWarps = 4;  // several, so that a warp that takes another one's work is found
    for (unsigned i = kWarps; i-- > 0;) {
      CpuWarp warp(i, kWarps);
      f(warp);
    }
  }
  void set(std::uint64_t word, std::uint64_t bits) { words_[word] |= bits; }
  void raise(std::uint32_t* flag, std::uint32_t value) {
    std::atomic_ref(*flag).store(value, std::memory_order_release);
  }

 private:
  std::uint64_t index_;
  std::uint64_t* words_;
};

}  // namespace nzcl::gpu
