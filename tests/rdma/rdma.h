// What the tests over native verbs have in common: they are skipped where there is no device.
#pragma once

#include <gtest/gtest.h>

#include "nzcl/error.h"
#include "tests/system/ranks.h"
#include "verbs/ibv/port.h"

namespace nzcl::test {

class Rdma : public testing::Test {
 protected:
  void SetUp() override {
    try {
      verbs::ibv::open_port({});
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  static Setting setting(int ranks) {
    Setting s{.transport = "ibverbs", .ranks = ranks, .options = {}};
    s.options.tune.slot_bytes = 16 << 10;  // many messages from little data
    s.options.pin = Pinning::off;
    s.options.timeout_s = 60;
    s.options.tune.ack_timeout = 16;
    s.options.log_level = LogLevel::off;
    return s;
  }
};

}  // namespace nzcl::test
