// Which members have left too early, and when that is a failure.
#include "runtime/bootstrap/leave_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace nzcl::bootstrap {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LeaveBoardTest : public testing::Test {
 protected:
  std::string failure() const {
    const auto failure = board.failure();
    if (!failure) return "";
    EXPECT_EQ(failure->code, ErrorCode::invalid_usage);
    return failure->text;
  }
  LeaveBoard board{{"rank 0", "rank 1", "rank 2", "aggregator 0"}, {false, false, false, true}};
};

TEST_F(LeaveBoardTest, AllMayLeaveAfterTheSameOperations) {
  EXPECT_EQ(board.limit(), std::numeric_limits<std::uint64_t>::max());
  board.wants(0, 5);
  EXPECT_TRUE(board.left(1, 5));
  EXPECT_EQ(board.limit(), 5u);
  board.wants(2, 5);
  EXPECT_FALSE(board.exceeded());
  EXPECT_FALSE(board.left(0, 5)) << "all know this limit";
  EXPECT_FALSE(board.left(2, 5));
  EXPECT_EQ(failure(), "");
}

TEST_F(LeaveBoardTest, OneThatWantsMoreIsAFailureWhenAllHaveFinishedWhatCanComplete) {
  board.left(1, 3);
  board.wants(0, 4);
  EXPECT_TRUE(board.exceeded());
  EXPECT_EQ(failure(), "");
  board.finished(0, 3);
  board.finished(2, 2);
  EXPECT_EQ(failure(), "") << "rank 2 has not finished operation 2";
  board.finished(2, 3);
  EXPECT_THAT(failure(), AllOf(HasSubstr("operation 3: rank 1 did not join"),
                               HasSubstr("after 3 operation(s)"), HasSubstr("rank 0 has started 4")));
}

TEST_F(LeaveBoardTest, TheOneThatBeganTheFewestIsNamed) {
  board.wants(0, 9);
  EXPECT_TRUE(board.left(1, 5));
  EXPECT_TRUE(board.left(2, 0));
  board.finished(0, 0);
  EXPECT_THAT(failure(), HasSubstr("operation 0: rank 2 did not join"));
}

TEST_F(LeaveBoardTest, ThoseThatHaveLeftOrAreGoneHaveNothingToFinish) {
  board.left(1, 3);
  board.left(2, 3);
  board.wants(0, 4);
  EXPECT_EQ(failure(), "");
  board.gone(0);
  EXPECT_THAT(failure(), HasSubstr("operation 3: rank 1 did not join"));
}

}  // namespace
}  // namespace nzcl::bootstrap
