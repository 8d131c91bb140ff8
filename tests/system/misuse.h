// Helpers of the tests of misuse and of failures: short timeouts, a registered buffer, and the error of a
// call.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/system/ranks.h"

namespace nzcl::test {

inline Setting quick(int ranks, int dedicated = 0) {
  Setting s{.transport = "loopback", .ranks = ranks, .dedicated = dedicated, .options = {}};
  s.options.timeout_s = 1;
  s.options.close_timeout_s = 20;
  s.options.pin = Pinning::off;
  s.options.log_level = LogLevel::off;
  return s;
}

struct Buffer {
  explicit Buffer(Communicator& c, std::size_t n = 10000)
      : data(n, 1.0f), registered(c.register_buffer(data.data(), n * 4)) {}
  AllreduceRequest request() { return {.input = data.data(), .output = data.data(), .count = data.size()}; }
  std::vector<float> data;
  RegisteredBuffer registered;
};

/// The code and the text of the error that `call` throws, or {0, ""} if it throws none.
inline std::pair<int, std::string> error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return {static_cast<int>(e.code()), e.what()};
  }
  return {0, ""};
}

}  // namespace nzcl::test
