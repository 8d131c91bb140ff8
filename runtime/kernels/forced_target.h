// Running the kernels on another instruction set than the best: for tests and benchmarks.
#pragma once

#include <hwy/targets.h>

namespace nzcl {

/// Kernels run on one instruction set while this lives. One at a time; not beside threads that call kernels.
class ForcedTarget {
 public:
  explicit ForcedTarget(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace nzcl
