// What a block of threads, a warp and a lane are on a GPU of NVIDIA: see bodies.h. For clang alone, which
// knows the instructions by name; no header of NVIDIA's is needed.
#pragma once

#include <cstdint>

#include "runtime/gpu/kernels/step_bodies.h"
#include "runtime/gpu/kernels/sum_bodies.h"
#include "runtime/gpu/kernels/tile_bodies.h"

namespace nzcl::gpu {

inline constexpr unsigned kAllLanes = 0xffffffff;

class GpuWarp {
 public:
  NZCL_ON_GPU GpuWarp(unsigned index, unsigned count, unsigned lane)
      : index_(index), count_(count), lane_(lane) {}
  NZCL_ON_GPU unsigned index() const { return index_; }
  NZCL_ON_GPU unsigned count() const { return count_; }
  template <unsigned kBits, typename F>
  NZCL_ON_GPU unsigned any(F f) {
    const unsigned own = f(lane_);
    unsigned found = 0;
    for (unsigned bit = 0; bit < kBits; ++bit)
      found |= __nvvm_vote_any_sync(kAllLanes, (own >> bit & 1) != 0) ? 1U << bit : 0U;
    return found;
  }
  template <unsigned kBits, typename F>
  NZCL_ON_GPU void ballot(unsigned (&to)[kBits], F f) {
    const unsigned own = f(lane_);
    NZCL_UNROLL for (unsigned bit = 0; bit < kBits; ++bit) to[bit] =
        __nvvm_vote_ballot_sync(kAllLanes, (own >> bit & 1) != 0);
  }
  template <typename F>
  NZCL_ON_GPU std::uint32_t max(F f) {
    std::uint32_t most = f(lane_);
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      const auto other = static_cast<std::uint32_t>(
          __nvvm_shfl_sync_bfly_i32(kAllLanes, static_cast<int>(most), apart, kLanes - 1));
      if (other > most) most = other;
    }
    return most;
  }
  template <typename F>
  NZCL_ON_GPU void each_lane(F f) {
    f(lane_);
  }
  template <typename F>
  NZCL_ON_GPU void once(F f) {
    if (lane_ == 0) f();
  }

 private:
  unsigned index_, count_, lane_;
};

extern __attribute__((shared)) std::uint64_t shared_words[];

class GpuBlock {
 public:
  NZCL_ON_GPU std::uint64_t index() const { return __nvvm_read_ptx_sreg_ctaid_x(); }
  NZCL_ON_GPU std::uint64_t* words() const { return shared_words; }
  template <typename F>
  NZCL_ON_GPU void each(std::uint32_t n, F f) {
    for (std::uint32_t i = __nvvm_read_ptx_sreg_tid_x(); i < n; i += __nvvm_read_ptx_sreg_ntid_x()) f(i);
    __syncthreads();
  }
  template <typename F>
  NZCL_ON_GPU void each_warp(F f) {
    const unsigned thread = __nvvm_read_ptx_sreg_tid_x();
    GpuWarp warp(thread / kLanes, __nvvm_read_ptx_sreg_ntid_x() / kLanes, thread % kLanes);
    f(warp);
    __syncthreads();
  }
  NZCL_ON_GPU void set(std::uint64_t word, std::uint64_t bits) {
    __atomic_fetch_or(&shared_words[word], bits, __ATOMIC_RELAXED);
  }
  template <typename T>
  NZCL_ON_GPU void add(T* at, T n) {
    __atomic_fetch_add(at, n, __ATOMIC_RELAXED);
  }
  template <typename T>
  NZCL_ON_GPU void add_everywhere(T* at, T n) {
    __atomic_fetch_add(at, n, __ATOMIC_RELAXED);
  }
  NZCL_ON_GPU void raise(std::uint32_t* flag, std::uint32_t value) {
    __nvvm_membar_sys();  // by every thread, for what it has written itself
    __syncthreads();
    if (__nvvm_read_ptx_sreg_tid_x() != 0) return;
    __nvvm_membar_sys();  // in the order of the barrier, for what all have written
    *static_cast<volatile std::uint32_t*>(flag) = value;
  }
};

}  // namespace nzcl::gpu
