// Meetings without a secret: the ranks prove that they belong to the same user of one host. Processes of
// another user are children of the test, which only root can start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <asio.hpp>
#include <functional>
#include <string>
#include <thread>
#include <variant>

#include "nzcl/error.h"
#include "runtime/bootstrap/socket_meeting.h"
#include "runtime/bootstrap/user_key.h"
#include "tests/system/meeting.h"

namespace nzcl::bootstrap {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr uid_t kStranger = 65534;

/// A desk that serves on a thread.
class Desk {
 public:
  explicit Desk(int port)
      : desk_(io_, {.port = port, .key = "the key", .name = "the desk", .make_room = [] { return false; }}),
        thread_([this] { io_.run(); }) {}
  ~Desk() { io_.stop(); }

 private:
  asio::io_context io_;
  KeyDesk desk_;
  std::jthread thread_;
};

std::string key_at(int port) {
  const auto answer = ask_for_key(port);
  const auto* reason = std::get_if<NotYet>(&answer);
  return reason != nullptr ? "not yet: " + reason->why : std::get<std::string>(answer);
}

/// A child of another user that runs `work`. To be made before there are threads, because it is a fork.
class Stranger {
 public:
  explicit Stranger(const std::function<bool()>& work) : child_(::fork()) {
    if (child_ != 0) return;
    bool good = false;
    try {
      good = ::setresuid(kStranger, kStranger, kStranger) == 0 && work();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    ::_exit(good ? 0 : 1);
  }
  /// Waits for the child. Returns whether `work` returned true.
  bool ended_well() const {
    int status = 0;
    return ::waitpid(child_, &status, 0) == child_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  const pid_t child_;
};

std::unique_ptr<Meeting> join_without_secret(int rank, int size, int port) {
  return make_socket_meeting(settings(rank, size),
                             {.host = "127.0.0.1", .port = port, .why = "the test", .secret = ""});
}

std::string error_of(Meeting& meeting, std::chrono::milliseconds time) {
  try {
    meet_for_three_rounds(meeting, in(time));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(KeyDesk, HandsTheKeyToThisUser) {
  const int port = free_port();
  EXPECT_THAT(key_at(port), HasSubstr("nobody listens there yet"));
  const Desk desk(port);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(key_at(port), "the key");
}

TEST(KeyDesk, ASecondOneWaitsForTheName) {
  const int port = free_port();
  const Desk desk(port);
  try {
    const Desk second(port);
    FAIL() << "two desks have one name";
  } catch (const std::system_error& e) {
    EXPECT_EQ(e.code(), asio::error::address_in_use);
  }
}

TEST(Trust, IsForThisUserInThisPidNamespace) {
  const ucred self{.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()};
  EXPECT_EQ(why_not_trusted(self), std::nullopt);
  ucred other = self;
  ++other.uid;
  EXPECT_THAT(why_not_trusted(other).value_or(""), HasSubstr("it belongs to user"));
  other = self;
  other.pid = 0;
  EXPECT_THAT(why_not_trusted(other).value_or(""), HasSubstr("another PID namespace"));
}

TEST(MeetingWithoutSecret, MeetsOverLoopback) {
  const int port = free_port();
  std::vector<std::string> errors(3);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back(
        [&, i] { errors[static_cast<std::size_t>(i)] = error_of(*join_without_secret(i, 3, port), kLong); });
  }
  threads.clear();
  EXPECT_THAT(errors, Each(""));
}

TEST(MeetingWithoutSecret, AMemberOfAnotherUserIsRefusedByName) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start processes of another user";
  const int port = free_port();
  const Stranger asks([port] {
    const std::string error = error_of(*join_without_secret(1, 2, port), kLong);
    return error.find("it belongs to user 0, not to user 65534") != error.npos &&
           error.find("NZCL_SECRET") != error.npos;
  });
  const Stranger guesses([port] {  // that there is no key
    return run({{1, 2, ""}}, port, kLong, three_rounds).front().find("secret") != std::string::npos;
  });
  const std::string hub = error_of(*join_without_secret(0, 2, port), std::chrono::milliseconds(4000));
  EXPECT_TRUE(asks.ended_well());
  EXPECT_TRUE(guesses.ended_well());
  EXPECT_THAT(hub,
              AllOf(HasSubstr("rank 1 did not come"), HasSubstr("of user 65534"), HasSubstr("NZCL_SECRET")));
}

TEST(MeetingWithoutSecret, AHubOfAnotherUserIsRefusedByName) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start processes of another user";
  const int port = free_port();
  const Stranger hub([port] {
    const std::string error = error_of(*join_without_secret(0, 2, port), std::chrono::milliseconds(4000));
    return error.find("rank 1 did not come") != error.npos;
  });
  EXPECT_THAT(error_of(*join_without_secret(1, 2, port), kLong),
              AllOf(HasSubstr("it belongs to user 65534, not to user 0"), HasSubstr("NZCL_SECRET")));
  EXPECT_TRUE(hub.ended_well());
}

}  // namespace
}  // namespace nzcl::bootstrap
