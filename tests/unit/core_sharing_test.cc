// Whether a core seems to be shared, from the times of yields as machines were seen to give them.
#include "runtime/comm/communicator/core_sharing.h"

#include <gtest/gtest.h>

namespace nzcl::comm {
namespace {

using std::chrono::nanoseconds;

TEST(CoreSharing, AYieldThatReturnsAtOnceLendsNoCoreHoweverSlowItIs) {
  for (const std::int64_t least : {300, 1200, 4000}) {
    CoreSharing sharing;
    for (const double factor : {1.2, 1.0, 1.1, 1.6, 2.0}) {
      EXPECT_FALSE(sharing.note_yield(nanoseconds(static_cast<std::int64_t>(factor * least)))) << least;
      EXPECT_FALSE(sharing.shared());
    }
  }
}

TEST(CoreSharing, AYieldDuringWhichAnotherThreadRanLendsIt) {
  for (const auto& [least, switched] : {std::pair{300, 2000}, {1200, 9300}}) {
    CoreSharing sharing;
    sharing.note_yield(nanoseconds(least));
    EXPECT_TRUE(sharing.note_yield(nanoseconds(switched)));
    EXPECT_TRUE(sharing.shared());
    EXPECT_FALSE(sharing.note_yield(nanoseconds(least))) << "the other thread has gone";
    EXPECT_FALSE(sharing.shared());
  }
}

TEST(CoreSharing, NothingIsKnownBeforeAYieldHasReturnedAtOnce) {
  CoreSharing sharing;
  EXPECT_FALSE(sharing.note_yield(nanoseconds(9300)));
  EXPECT_FALSE(sharing.note_yield(nanoseconds(9400)));
  EXPECT_FALSE(sharing.note_yield(nanoseconds(1200)));
  EXPECT_TRUE(sharing.note_yield(nanoseconds(9300)));
}

TEST(CoreSharing, LessThanAMicrosecondLendsNothing) {
  CoreSharing sharing;
  sharing.note_yield(nanoseconds(100));
  EXPECT_FALSE(sharing.note_yield(nanoseconds(999)));
  EXPECT_TRUE(sharing.note_yield(nanoseconds(1000)));
}

}  // namespace
}  // namespace nzcl::comm
