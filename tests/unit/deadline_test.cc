#include "runtime/base/deadline.h"

#include <gtest/gtest.h>

#include <limits>

#include "nzcl/duration.h"

namespace nzcl {
namespace {

using std::chrono::duration;
using std::chrono::hours;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

static_assert(saturated_nanoseconds(seconds(-3)) == nanoseconds(-3'000'000'000));
static_assert(saturated_nanoseconds(duration<double>(0.5)) == nanoseconds(500'000'000));
static_assert(saturated_nanoseconds(nanoseconds(1)) == nanoseconds(1));
static_assert(saturated_nanoseconds(nanoseconds::max()) == nanoseconds::max());
static_assert(saturated_nanoseconds(hours::max()) == nanoseconds::max());
static_assert(saturated_nanoseconds(hours::min()) == nanoseconds::min());
static_assert(saturated_nanoseconds(duration<double>(1e20)) == nanoseconds::max());
static_assert(saturated_nanoseconds(duration<double>(-1e20)) == nanoseconds::min());
static_assert(saturated_nanoseconds(duration<double>(std::numeric_limits<double>::quiet_NaN())) ==
              nanoseconds::max());

TEST(Deadline, NoTimeIsTooLongOrTooShort) {
  const auto now = steady_clock::now();
  const auto at_once = deadline_after(nanoseconds(0));
  EXPECT_LE(at_once, steady_clock::now());
  EXPECT_EQ(deadline_after(nanoseconds::max()), steady_clock::time_point::max());
  EXPECT_EQ(deadline_after(nanoseconds::max() - (now.time_since_epoch() / 2)),
            steady_clock::time_point::max());
  EXPECT_LT(deadline_after(nanoseconds::min()), now);
  EXPECT_GE(deadline_after(hours(24)), now + hours(24));
  EXPECT_LT(deadline_after(hours(24)), now + hours(25));
}

}  // namespace
}  // namespace nzcl
