// Runs the kernels on another instruction set than the best one, for tests and benchmarks.
#pragma once

#include <hwy/targets.h>

namespace nzcl {

/// While this object lives, the kernels run on one given instruction set. Only one such object may exist at a
/// time, and no other thread may call kernels meanwhile.
class ForcedTarget {
 public:
  explicit ForcedTarget(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace nzcl
