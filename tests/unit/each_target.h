// Runs a test's body on every instruction set that the kernels are compiled for and this CPU has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "runtime/kernels/targets.h"

namespace nzcl::test {

/// Kernels run on one instruction set while this lives. One at a time; not beside threads that call kernels.
class ForcedTarget {
 public:
  explicit ForcedTarget(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

template <class Body>
void on_each_target(Body body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ForcedTarget forced(target);
    SCOPED_TRACE(hwy::TargetName(target));
    ASSERT_EQ(active_kernel_target(), hwy::TargetName(target));
    body();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace nzcl::test
