// Which aggregators the tests of racks run with. The kernel is only in the program that links nzcl_switch.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>

#ifdef NZCL_TEST_KERNEL
#include "tests/engine/kernel_switch.h"
#endif
#include "tests/engine/switch_rack.h"

namespace nzcl::engine::slot_pool::test {

enum class SummedBy { process, kernel };

#ifdef NZCL_TEST_KERNEL
inline constexpr std::array kAllSummers{SummedBy::kernel};
#else
inline constexpr std::array kAllSummers{SummedBy::process};
#endif

inline std::string name_of(const ::testing::TestParamInfo<SummedBy>& info) {
  switch (info.param) {
    case SummedBy::process:
      return "process";
    case SummedBy::kernel:
      return "kernel";
  }
  return "";
}

class OnEachAggregator : public ::testing::TestWithParam<SummedBy> {
 protected:
  void SetUp() override {
#ifdef NZCL_TEST_KERNEL
    if (std::string why_not; !KernelServer::make({2, 4, 4, kJob, true}, why_not)) GTEST_SKIP() << why_not;
#endif
  }
  bool in_kernel() const { return GetParam() == SummedBy::kernel; }
  /// Completes the setting.
  RackSetting with_aggregator(RackSetting setting) const {
#ifdef NZCL_TEST_KERNEL
    setting.zeros = true;
    setting.make = [](const Pool& pool) {
      std::string why_not;
      auto server = KernelServer::make(pool, why_not);
      if (!server) throw Error(ErrorCode::unavailable, why_not);
      return server;
    };
#endif
    return setting;
  }
};

}  // namespace nzcl::engine::slot_pool::test
