// What a block of threads, a warp and a lane are on the CPU: see bodies.h. One thread takes the part of all
// lanes, in turn. Where the kernels have a barrier, it has been everywhere before it goes on.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/gpu/kernels/step_bodies.h"
#include "runtime/gpu/kernels/sum_bodies.h"
#include "runtime/gpu/kernels/tile_bodies.h"

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
  template <unsigned kBits>
  void ballot(unsigned (&to)[kBits], auto f) {
    for (unsigned& bits : to) bits = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned own = f(lane);
      for (unsigned bit = 0; bit < kBits; ++bit) to[bit] |= (own >> bit & 1) << lane;
    }
  }
  std::uint32_t max(auto f) {
    std::uint32_t most = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t own = f(lane);
      if (own > most) most = own;
    }
    return most;
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
  void add(auto* at, auto n) { *at += n; }
  /// The blocks of a kernel run one after the other.
  void add_everywhere(auto* at, auto n) { *at += n; }
  void raise(std::uint32_t* flag, std::uint32_t value) {
    std::atomic_ref(*flag).store(value, std::memory_order_release);
  }

 private:
  std::uint64_t index_;
  std::uint64_t* words_;
};

/// One block of threads of a sum.
inline void sum_any_type(CpuBlock& block, const SumJob& job) {
  switch (job.type) {
    case SumType::float32:
      return sum_typed<SumType::float32>(block, job);
    case SumType::float64:
      return sum_typed<SumType::float64>(block, job);
    case SumType::float16:
      return sum_typed<SumType::float16>(block, job);
    case SumType::bfloat16:
      return sum_typed<SumType::bfloat16>(block, job);
    case SumType::int32:
      return sum_typed<SumType::int32>(block, job);
    case SumType::int64:
      return sum_typed<SumType::int64>(block, job);
    case SumType::uint8:
      return sum_typed<SumType::uint8>(block, job);
  }
}

/// One block of threads of a job's pass.
inline void run_any_pass(CpuBlock& block, const SelectJob& job) {
  switch (job.pass) {
    case SelectPass::put_back:
      return run_pass<SelectPass::put_back>(block, job);
    case SelectPass::square:
      return run_pass<SelectPass::square>(block, job);
    case SelectPass::clip:
      return run_pass<SelectPass::clip>(block, job);
    case SelectPass::measure:
      return run_pass<SelectPass::measure>(block, job);
    case SelectPass::rank:
      return run_pass<SelectPass::rank>(block, job);
    case SelectPass::count:
      return run_pass<SelectPass::count>(block, job);
    case SelectPass::select:
      return run_pass<SelectPass::select>(block, job);
  }
}

}  // namespace nzcl::gpu
