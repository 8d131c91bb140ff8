// Runs a test's body on every instruction set that the kernels are compiled for and this CPU has.
#pragma once

#include <gtest/gtest.h>

#include "runtime/kernels/forced_target.h"
#include "runtime/kernels/targets.h"

namespace nzcl::test {

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
