// What tests of failures have in common.
#pragma once

#include <barrier>
#include <functional>

#include "nzcl/error.h"
#include "tests/system/ranks.h"

namespace nzcl::test {

/// Ranks that fail without a word, and do not wait long for each other.
inline Setting setting(int ranks = 2) {
  Setting s{.ranks = ranks, .options = {}};
  s.options.log_level = LogLevel::off;
  s.options.timeout_s = 30;
  return s;
}

/// The error that the call throws, or one with an empty text.
inline Error thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorCode::internal, "");
}

/// A rank that leaves early keeps nobody waiting.
struct Leaving {
  explicit Leaving(std::barrier<>& of) : barrier(of) {}
  ~Leaving() { barrier.arrive_and_drop(); }
  std::barrier<>& barrier;
};

}  // namespace nzcl::test
