// One sum on a communicator, compared with a plain one: for tests of who is in a communicator.
#pragma once

#include "tests/system/misuse.h"
#include "tests/system/run_one.h"

namespace nzcl::test {

/// Of integers, so that it does not matter in which order an algorithm sums.
inline Problem problem_of(const Communicator& c, unsigned seed) {
  return {.type = DataType::int32,
          .op = ReduceOp::sum,
          .count = 70001,
          .block = 256,
          .sparsity = Sparsity::random,
          .ranks = c.size(),
          .seed = seed};
}

/// Runs one operation, and compares it with a plain sum.
inline void check_sum(Communicator& c, unsigned seed = 1) {
  const Problem p = problem_of(c, seed);
  run_one(c, p, make_expected(p), Form::out_of_place);
}

/// For tests in which nothing should time out, not even on a busy machine.
inline Setting calm(int ranks, int dedicated = 0) {
  Setting s = quick(ranks, dedicated);
  s.options.timeout_s = 60;
  s.options.bootstrap_timeout_s = 60;
  return s;
}

}  // namespace nzcl::test
