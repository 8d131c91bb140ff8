// A timeout of its own for one operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "nzcl/nzcl.h"
#include "tests/system/misuse.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// Rank 1 stays away from what `start` starts until rank 0 has its error; returns that.
std::pair<int, std::string> error_alone(double option_s,
                                        const std::function<Work(Communicator&, Buffer&)>& start) {
  Setting s = quick(2);
  s.options.timeout_s = option_s;
  std::promise<void> over;
  std::pair<int, std::string> error;
  run_ranks(s, [&](Communicator& c) {
    Buffer b(c);
    c.allreduce(b.request()).wait();
    if (c.rank() == 1) return over.get_future().wait();
    error = error_of([&] {
      Work work = start(c, b);
      EXPECT_TRUE(work.wait(20s)) << "the option's timeout is not over yet";
    });
    over.set_value();
  });
  return error;
}

TEST(OperationTimeoutTest, IsTheOperationsOwnAndNotTheOptions) {
  const auto dense = error_alone(600, [](Communicator& c, Buffer& b) {
    AllreduceRequest r = b.request();
    r.timeout = 250ms;
    return c.allreduce(r);
  });
  EXPECT_EQ(dense.first, static_cast<int>(ErrorCode::timeout));
  EXPECT_THAT(dense.second, AllOf(HasSubstr("no progress for 0.25 s"), HasSubstr("rank(s) 1 did not join")));
  const auto sparse = error_alone(600, [](Communicator& c, Buffer& b) {
    return c.allreduce_sparse({.count = 1000, .output = b.data.data(), .timeout = 250ms});
  });
  EXPECT_EQ(sparse.first, static_cast<int>(ErrorCode::timeout));
}

TEST(OperationTimeoutTest, OfSeveralInFlightTheOneThatIsOverFirstDecides) {
  const auto error = error_alone(600, [](Communicator& c, Buffer& b) {
    Work patient = c.allreduce(b.request());
    Work hasty = c.allreduce({.timeout = 300ms});
    return patient;
  });
  EXPECT_THAT(error.second, HasSubstr("no progress for 0.3 s"));
}

TEST(OperationTimeoutTest, CountsFromTheCallAndNotFromAnEarlierStall) {
  Setting s = quick(2);
  s.options.timeout_s = 600;
  std::promise<void> both_started;
  const auto errors = run_ranks(s, [&](Communicator& c) {
    Buffer b(c);
    if (c.rank() == 1) {
      both_started.get_future().wait();
      std::this_thread::sleep_for(300ms);
    }
    Work patient = c.allreduce(b.request());
    if (c.rank() == 0) {
      EXPECT_FALSE(patient.wait(2500ms));
    }
    Work hasty = c.allreduce({.timeout = 2s});
    if (c.rank() == 0) both_started.set_value();
    hasty.wait();
    patient.wait();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(OperationTimeoutTest, OnesOutOfRangeAreRefused) {
  const auto errors = run_ranks(quick(1), [](Communicator& c) {
    Buffer b(c);
    for (const std::chrono::nanoseconds bad :
         {std::chrono::nanoseconds(-1), std::chrono::nanoseconds(999999), std::chrono::nanoseconds(24h + 1ns),
          std::chrono::nanoseconds::max()}) {
      AllreduceRequest r = b.request();
      r.timeout = bad;
      const auto error = error_of([&] { (void)c.allreduce(r); });
      EXPECT_EQ(error.first, static_cast<int>(ErrorCode::invalid_argument)) << bad.count();
      EXPECT_THAT(error.second, HasSubstr("timeout is"));
    }
    AllreduceRequest r = b.request();
    for (const std::chrono::nanoseconds good :
         {std::chrono::nanoseconds(1ms), std::chrono::nanoseconds(24h)}) {
      r.timeout = good;
      c.allreduce(r).wait();
    }
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
