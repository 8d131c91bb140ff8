// Where the tests of many combinations run: a transport, a number of ranks, and where the owners are.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>

#include "tests/system/ranks.h"

namespace nzcl::test {

struct Where {
  std::string transport;
  int ranks;
  int dedicated = 0;
  int lanes = 1;
  std::string text() const {
    std::string name = transport;
    std::replace(name.begin(), name.end(), '-', '_');
    return name + "_" + std::to_string(ranks) + (dedicated ? "_dedicated_" + std::to_string(dedicated) : "") +
           (lanes > 1 ? "_lanes_" + std::to_string(lanes) : "");
  }
  friend void PrintTo(const Where& w, std::ostream* out) { *out << w.text(); }

  /// Small slots, so that little data makes many messages.
  Setting setting() const {
    Setting s{.transport = transport, .ranks = ranks, .dedicated = dedicated, .options = {}};
    s.options.lanes = lanes;
    s.options.tune.slot_bytes = 16 << 10;
    s.options.pin = Pinning::off;
    s.options.timeout_s = 60;
    s.options.log_level = LogLevel::off;
    return s;
  }
};

}  // namespace nzcl::test
