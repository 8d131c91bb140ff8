// A member that cannot go on tells the others why, and none of them waits for it.
#include "runtime/bootstrap/telling_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/local.h"

namespace nzcl::bootstrap {
namespace {

using testing::ElementsAre;

const auto kLong = std::chrono::seconds(60);

/// Runs members as threads, and returns the texts of the errors with which they ended.
std::vector<std::string> run(int members, const std::function<void(TellingMeeting&)>& body) {
  const auto local = std::make_shared<LocalMeeting>(members);
  std::vector<std::string> errors(static_cast<std::size_t>(members));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      const auto inner = make_local_bootstrap(local, rank);
      TellingMeeting meeting(*inner);
      try {
        body(meeting);
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

TEST(TellingMeeting, PassesEverythingOn) {
  EXPECT_THAT(run(2,
                  [](TellingMeeting& meeting) {
                    const std::string mine(static_cast<std::size_t>(meeting.rank()), '\0');
                    for (int round = 0; round < 3; ++round)
                      EXPECT_THAT(meeting.allgather(mine, Clock::now() + kLong),
                                  ElementsAre("", std::string(1, '\0')));
                  }),
              ElementsAre("", ""));
}

TEST(TellingMeeting, TheOthersLearnAtTheNextRoundWhyOneGivesUp) {
  EXPECT_THAT(run(3,
                  [](TellingMeeting& meeting) {
                    meeting.allgather("first", Clock::now() + kLong);
                    if (meeting.rank() == 1)
                      return meeting.give_up({ErrorCode::system, "rank 1: no \xff"}, Clock::now() + kLong);
                    meeting.allgather("second", Clock::now() + kLong);
                  }),
              ElementsAre("rank 1: no \xef\xbf\xbd", "", "rank 1: no \xef\xbf\xbd"));
}

TEST(TellingMeeting, WhoHasLearntItNeedNotTellItAgain) {
  EXPECT_THAT(run(2,
                  [](TellingMeeting& meeting) {
                    if (meeting.rank() == 1)
                      return meeting.give_up({ErrorCode::system, "no memory"}, Clock::now() + kLong);
                    try {
                      meeting.allgather("", Clock::now() + kLong);
                    } catch (const Error& e) {
                      meeting.give_up({e.code(), e.what()},
                                      Clock::now() + kLong);  // must not wait for a second round
                      throw;
                    }
                  }),
              ElementsAre("no memory", ""));
}

TEST(TellingMeeting, AllMayGiveUpAtOnce) {
  EXPECT_THAT(run(3,
                  [](TellingMeeting& meeting) {
                    meeting.give_up({ErrorCode::system, "all"}, Clock::now() + kLong);
                  }),
              ElementsAre("", "", ""));
}

}  // namespace
}  // namespace nzcl::bootstrap
