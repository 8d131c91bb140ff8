// Runs the kernels on another instruction set than the best one, for tests and benchmarks.
#pragma once

#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL  // some kernels are compiled for it
#endif
#include <hwy/targets.h>

#include <cstdint>

namespace nzcl {

/// While this object lives, the kernels run on one given instruction set, and those that are not compiled for
/// it on the next lesser one. Only one such object may exist at a time, and no other thread may call kernels
/// meanwhile.
class ForcedTarget {
 public:
  explicit ForcedTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(~(target - 1));  // lesser instruction sets are greater numbers
  }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace nzcl
