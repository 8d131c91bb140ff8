// The control plane: how a communicator fails, and how its members leave, with threads as members.
#include "runtime/bootstrap/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/local.h"
#include "runtime/bootstrap/stream_threads.h"
#include "tests/system/meeting.h"
#include "verbs/descriptors.h"

namespace nzcl::bootstrap {
namespace {

using testing::HasSubstr;

struct Plane {
  std::unique_ptr<ControlPlane> control;
  std::atomic<int> failures{0};
};

std::vector<std::unique_ptr<Plane>> planes(int size, const std::vector<bool>& serves = {}) {
  std::vector<std::unique_ptr<Plane>> all;
  auto meeting = std::make_shared<LocalMeeting>(size);
  ControlPlane::Settings names{.names = {}, .serves = serves};
  for (int i = 0; i < size; ++i) {
    all.push_back(std::make_unique<Plane>());
    names.names.push_back("rank " + std::to_string(i));
  }
  const auto time = size > 100 ? kForMany : kLong;
  std::vector<std::jthread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      Plane& plane = *all[static_cast<std::size_t>(i)];
      plane.control = ControlPlane::join(*make_local_meeting(meeting, i), in(time));
      plane.control->settle(names, in(time));
      plane.control->watch([] { return Progress{}; }, [&plane] { ++plane.failures; });
    });
  }
  threads.clear();
  return all;
}

void on_all(const std::vector<std::unique_ptr<Plane>>& all,
            const std::function<void(Plane&, std::size_t)>& body) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < all.size(); ++i) threads.emplace_back([&, i] { body(*all[i], i); });
}

TEST(ControlPlane, AllLeaveTogether) {
  const auto all = planes(4);
  on_all(all, [](Plane& p, std::size_t) {
    EXPECT_TRUE(p.control->leave(in(kLong)));
    p.control->quiesced();
    EXPECT_TRUE(p.control->wait_quiesced(in(kLong)));
    p.control.reset();  // members leave one by one, and their lost connections are no failures any more
  });
  for (const auto& p : all) EXPECT_EQ(p->failures, 0);
}

TEST(ControlPlane, LeavingWaitsForTheLastAndSaysSoAtTheDeadline) {
  const auto all = planes(2);
  EXPECT_FALSE(all[1]->control->leave(in(std::chrono::milliseconds(50))));
  EXPECT_FALSE(all[1]->control->failed());
}

TEST(ControlPlane, TheFirstFailureReachesAllOnce) {
  const auto all = planes(4);
  all[2]->control->abort({ErrorCode::aborted, "first"});
  on_all(all, [](Plane& p, std::size_t) {
    while (!p.control->failed()) std::this_thread::yield();
    p.control->abort({ErrorCode::internal, "second"});
    EXPECT_EQ(p.control->failure()->text, "first");
    EXPECT_EQ(p.control->failure()->code, ErrorCode::aborted);
    p.control->quiesced();
    EXPECT_TRUE(p.control->wait_quiesced(in(kLong)));
    EXPECT_FALSE(p.control->leave(in(kLong)));
  });
  for (const auto& p : all) EXPECT_EQ(p->failures, 1);
}

// What a member does that cannot open its device, for example.
TEST(ControlPlane, AllLearnWhyAMemberCannotJoinEvenThoseThatComeLater) {
  for (const int who : {0, 1}) {
    const int port = free_port();
    std::latch gone(1);
    const auto errors = run({{0}, {1}, {2}}, port, kLong, [&](Rounds& rounds, Deadline deadline) {
      rounds.allgather("", deadline);
      if (rounds.rank() == who) throw Error(ErrorCode::system, "rank x has no memory");
      if (rounds.rank() == 2) gone.wait();
      try {
        rounds.allgather("", deadline);
      } catch (const Error&) {
        if (rounds.rank() != 2) gone.count_down();
        throw;
      }
    });
    EXPECT_THAT(errors, testing::Each("rank x has no memory")) << who;
  }
}

TEST(ControlPlane, BytesThatAreNotTextAreReplacedInAFailure) {
  for (const std::size_t who : {std::size_t{0}, std::size_t{1}}) {
    const auto all = planes(3);
    all[who]->control->abort({ErrorCode::aborted, "bad \xff\xfe bytes"});
    on_all(all, [](Plane& p, std::size_t) {
      while (!p.control->failed()) std::this_thread::yield();
      EXPECT_EQ(p.control->failure()->text, "bad \uFFFD\uFFFD bytes");
    });
  }
}

TEST(ControlPlane, ADeadMemberIsNamedToTheOthersWhoBecomeQuietWithoutIt) {
  for (const std::size_t dead : {std::size_t{2}, std::size_t{0}}) {
    auto all = planes(3);
    all[dead]->control.reset();
    on_all(all, [&](Plane& p, std::size_t i) {
      if (i == dead) return;
      while (!p.control->failed()) std::this_thread::yield();
      EXPECT_EQ(p.control->failure()->code, ErrorCode::peer_failed);
      EXPECT_THAT(p.control->failure()->text, HasSubstr("rank " + std::to_string(dead) + " died"));
      p.control->quiesced();
      EXPECT_TRUE(p.control->wait_quiesced(in(kLong)));
    });
  }
}

/// All members in `dead` die at once.
void kill(const std::vector<std::unique_ptr<Plane>>& all, const std::set<std::size_t>& dead) {
  on_all(all, [&](Plane& p, std::size_t i) {
    if (dead.contains(i)) p.control.reset();
  });
}

TEST(ControlPlane, TheHubOfManyTellsAllOthersOfADeath) {
  constexpr int kMany = 2 * static_cast<int>(kStreamsPerThread);
  verbs::make_room_for_descriptors(10 * kMany);
  const auto all = planes(kMany);
  all[5]->control.reset();
  on_all(all, [](Plane& plane, std::size_t i) {
    if (i == 5) return;
    for (const auto end = in(kForMany); !plane.control->failed() && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_THAT(plane.control->failure().value_or(Failure()).text, HasSubstr("rank 5 died"));
    plane.control->quiesced();
    EXPECT_TRUE(plane.control->wait_quiesced(in(kForMany)));
  });
}

TEST(ControlPlane, WithoutTheHubTheOthersTellEachOtherThatTheyAreQuiet) {
  using Dead = std::set<std::size_t>;
  for (const Dead& dead : {Dead{0}, Dead{0, 1}, Dead{0, 2}, Dead{0, 4}, Dead{0, 1, 2}, Dead{0, 1, 2, 3}}) {
    const auto all = planes(5);
    kill(all, dead);
    const std::size_t last = dead.contains(4) ? 3 : 4;
    std::latch others_wait(static_cast<std::ptrdiff_t>(all.size() - dead.size()) - 1);
    on_all(all, [&](Plane& p, std::size_t i) {
      if (dead.contains(i)) return;
      while (!p.control->failed()) std::this_thread::yield();
      // The hub may have told the others of another death before its own.
      EXPECT_TRUE(std::any_of(dead.begin(), dead.end(), [&](std::size_t d) {
        return p.control->failure()->text.find("rank " + std::to_string(d) + " died") != std::string::npos;
      })) << p.control->failure()->text;
      if (i == last) {
        others_wait.wait();
      } else {
        p.control->quiesced();
        EXPECT_FALSE(p.control->wait_quiesced(in(std::chrono::milliseconds(200)))) << "the last is not quiet";
        others_wait.count_down();
      }
      p.control->quiesced();
      EXPECT_TRUE(p.control->wait_quiesced(in(kLong))) << "member " << i << " of " << dead.size() << " dead";
    });
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!dead.contains(i)) {
        EXPECT_EQ(all[i]->failures, 1);
      }
    }
  }
}

TEST(ControlPlane, MembersThatDieOneAfterAnotherAreNotWaitedFor) {
  const auto all = planes(5);
  all[3]->control->abort({ErrorCode::aborted, "first"});
  for (const auto& p : all) {
    while (!p->control->failed()) std::this_thread::yield();
  }
  all[4]->control->quiesced();
  for (const std::size_t next : {0, 1, 2}) {
    EXPECT_FALSE(all[4]->control->wait_quiesced(in(std::chrono::milliseconds(200))));
    all[next]->control.reset();
  }
  all[3]->control->quiesced();
  for (const std::size_t i : {3, 4}) {
    EXPECT_TRUE(all[i]->control->wait_quiesced(in(kLong)));
    EXPECT_EQ(all[i]->control->failure()->text, "first");
  }
}

constexpr std::chrono::minutes kVeryLong{5};

/// The members that are left for a member which shrinks, or why it is not among them.
std::string shrink(ControlPlane& control, std::chrono::milliseconds time) {
  Regrouping& regrouping = control.regrouping();
  try {
    regrouping.enter();
    while (true) {
      const auto attempt = regrouping.next({}, in(time));
      if (regrouping.conclude(attempt.number, std::nullopt, in(kVeryLong)))
        return testing::PrintToString(attempt.members);
    }
  } catch (const Error& e) {
    regrouping.leave();  // as the library does, so that the others do not wait for this member
    return e.what();
  }
}

/// The thread of a control plane that does not get to run, as if its process was stopped.
struct Stopped {
  std::latch goes_on{1};
  void stop(Plane& plane) {
    plane.control->watch([] { return Progress{}; }, [this] { goes_on.wait(); });
  }
};

// The one whose time is over first asks the next one, which finds out that the hub is silent, and then tells
// the others. Otherwise it would give up before they do that by themselves.
TEST(ControlPlane, ASilentHubIsReplacedWhenOneOfTheMembersIsLate) {
  const auto all = planes(4);
  Stopped stopped;
  stopped.stop(*all[0]);
  all[2]->control->abort({ErrorCode::aborted, "a reason to shrink"});
  std::array<std::string, 4> said;
  std::latch calls(3);
  on_all(all, [&](Plane& p, std::size_t i) {
    if (i > 0) said[i] = shrink(*p.control, i == 3 ? std::chrono::milliseconds(100) : kVeryLong);
    if (i > 0) calls.count_down();
    if (i == 0) {
      calls.wait();
      stopped.goes_on.count_down();
      said[i] = shrink(*p.control, kVeryLong);
    }
  });
  EXPECT_THAT(said[0], HasSubstr("rank 0 was left out, because it did not answer"));
  for (const std::size_t i : {1u, 2u, 3u}) EXPECT_EQ(said[i], "{ 1, 2, 3 }") << i;
}

TEST(ControlPlane, TheNextHubMayBeSilentAsWell) {
  const auto all = planes(5);
  std::array<Stopped, 2> stopped;
  for (std::size_t i = 0; i < stopped.size(); ++i) stopped[i].stop(*all[i]);
  all[2]->control->abort({ErrorCode::aborted, "a reason to shrink"});
  std::array<std::string, 5> said;
  std::latch calls(3);
  on_all(all, [&](Plane& p, std::size_t i) {
    if (i > 1) {
      said[i] = shrink(*p.control, i == 4 ? std::chrono::milliseconds(100) : kVeryLong);
      calls.count_down();
    } else {
      calls.wait();
      stopped[i].goes_on.count_down();
    }
  });
  for (const std::size_t i : {2u, 3u, 4u}) EXPECT_EQ(said[i], "{ 2, 3, 4 }") << i;
}

TEST(ControlPlane, TheHubMayDieAfterAllHaveLeft) {
  const auto all = planes(3);
  on_all(all, [](Plane& p, std::size_t) { EXPECT_TRUE(p.control->leave(in(kLong))); });
  kill(all, {0});
  all[1]->control->quiesced();
  EXPECT_FALSE(all[1]->control->wait_quiesced(in(std::chrono::milliseconds(200)))) << "member 2 is not quiet";
  all[2]->control->quiesced();
  for (const std::size_t i : {1, 2}) {
    EXPECT_TRUE(all[i]->control->wait_quiesced(in(kLong)));
    EXPECT_EQ(all[i]->failures, 0);
  }
}

TEST(ControlPlane, MembersThatServeLeaveAfterAllOthers) {
  const auto all = planes(3, {false, false, true});
  on_all(all, [](Plane& p, std::size_t) { EXPECT_TRUE(p.control->leave(Deadline::max())); });
}

// --- Gathers of the control plane

TEST(ControlPlaneGather, GroupsOfMembersGatherSideBySideAndLargeParts) {
  const auto all = planes(5);
  on_all(all, [](Plane& p, std::size_t i) {
    const std::vector<int> mine = i % 2 == 0 ? std::vector<int>{4, 0, 2} : std::vector<int>{1, 3};
    for (int round = 0; round < 20; ++round) {
      const auto part = [&](int member) {
        return std::string(static_cast<std::size_t>(round * 10000), '\xfe') + std::to_string(member);
      };
      std::vector<std::string> expected;
      for (const int member : mine) expected.push_back(part(member));
      EXPECT_EQ(p.control->gather("group " + std::to_string(i % 2) + ", round " + std::to_string(round), mine,
                                  part(static_cast<int>(i)), in(kLong)),
                expected);
    }
    EXPECT_FALSE(p.control->failed());
  });
}

TEST(ControlPlaneGather, TheDeathOfAMemberEndsIt) {
  for (const std::size_t dead : {std::size_t{2}, std::size_t{0}}) {
    auto all = planes(3);
    std::jthread dies([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that the others wait already
      all[dead]->control.reset();
    });
    on_all(all, [&](Plane& p, std::size_t i) {
      if (i == dead) return;
      try {
        p.control->gather("g", {0, 1, 2}, "x", Deadline::max());
        ADD_FAILURE() << "it ended well";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::peer_failed);
        EXPECT_THAT(e.what(), HasSubstr("rank " + std::to_string(dead) + " died"));
      }
    });
  }
}

TEST(ControlPlaneGather, EndsWhenAnotherMemberLeavesAndWhenAllHaveLeft) {
  const auto all = planes(3, {true, false, false});
  on_all(all, [](Plane& p, std::size_t i) {
    if (i != 0) {
      EXPECT_TRUE(p.control->leave(in(kLong)));
      return;
    }
    try {  // the last member may leave before this one hears of the first
      EXPECT_EQ(p.control->gather("g", {0, 1, 2}, "", Deadline::max()), std::nullopt);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_usage);
      EXPECT_THAT(e.what(), HasSubstr("has closed the communicator"));
    }
    EXPECT_TRUE(p.control->leave(in(kLong)));
    EXPECT_EQ(p.control->gather("h", {0, 1, 2}, "", Deadline::max()), std::nullopt);
  });
}

TEST(ControlPlane, TheDeathOfAServingMemberIsAFailureAtAnyTime) {
  auto all = planes(3, {false, false, true});
  std::jthread server([&] { EXPECT_FALSE(all[2]->control->leave(in(std::chrono::milliseconds(50)))); });
  server.join();
  all[2]->control.reset();
  for (const std::size_t i : {0, 1}) {
    while (!all[i]->control->failed()) std::this_thread::yield();
    EXPECT_THAT(all[i]->control->failure()->text, HasSubstr("rank 2 died"));
  }
}

}  // namespace
}  // namespace nzcl::bootstrap
