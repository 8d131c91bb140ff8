// Meetings whose members are threads of the test, over real sockets on the loopback address.
#pragma once

#include <gtest/gtest.h>
#include <asio.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/rounds.h"

namespace nzcl::bootstrap {

using tcp = asio::ip::tcp;

inline int free_port() {
  asio::io_context io;
  return tcp::acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0)).local_endpoint().port();
}

inline Deadline in(std::chrono::milliseconds time) { return Clock::now() + time; }
/// kForMany is for more than a hundred members, who are all threads of the test.
inline constexpr std::chrono::milliseconds kLong{20000}, kShort{700}, kForMany{120000};

inline MeetingSettings settings(int position, int size, const std::string& session = "s") {
  return {.position = position,
          .size = size,
          .session = session,
          .who = "rank " + std::to_string(position) + " (a thread)",
          .name = [](int i) { return "rank " + std::to_string(i); },
          .point_name = "the test"};
}

struct Member {
  int position, size = 3;
  std::string secret = "the secret of the job", session = "s";
};

/// A meeting whose place all members know.
class FixedMeeting final : public Meeting {
 public:
  FixedMeeting(MeetingSettings settings, MeetingPoint point)
      : Meeting(std::move(settings)), point_(std::move(point)) {}
  std::variant<HubPlace, NotYet> place(Deadline) override {
    return HubPlace{.addresses = point_.addresses, .port = point_.port, .secret = point_.secret};
  }
  std::variant<MeetingPoint, NotYet> find(Deadline) override { return point_; }
  bool secret_is_sure() const override { return true; }

 private:
  const MeetingPoint point_;
};

inline std::unique_ptr<Meeting> join(const Member& m, int port) {
  return std::make_unique<FixedMeeting>(
      settings(m.position, m.size, m.session),
      MeetingPoint{.addresses = {asio::ip::address_v4::loopback()}, .port = port, .secret = m.secret});
}

/// Comes to the meeting, and runs `body` with the rounds of its members.
inline void meet(Meeting& meeting, Deadline deadline, const std::function<void(Rounds&, Deadline)>& body) {
  const auto control = ControlPlane::join(meeting, deadline);
  Rounds rounds(*control, "test", meeting.size(), meeting.rank());
  try {
    body(rounds, deadline);
  } catch (const Error& e) {
    control->abort({e.code(), e.what()});  // as a communicator does whose member cannot join
    throw;
  }
}

/// Runs all members of a meeting. Returns the text of each member's error, or "" where there was none.
inline std::vector<std::string> run(const std::vector<Member>& members, int port,
                                    std::chrono::milliseconds time,
                                    const std::function<void(Rounds&, Deadline)>& body) {
  std::vector<std::string> errors(members.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        meet(*join(members[i], port), in(time), body);
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

inline void three_rounds(Rounds& b, Deadline deadline) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> expected;
    // The members' parts differ in size; some are empty, and some contain zero bytes.
    const auto part = [&](int rank) {
      return std::string(static_cast<std::size_t>(rank * round * 1000), '\0') +
             std::to_string(rank * 10 + round);
    };
    for (int r = 0; r < b.size(); ++r) expected.push_back(part(r));
    EXPECT_EQ(b.allgather(part(b.rank()), deadline), expected);
  }
}

inline void meet_for_three_rounds(Meeting& meeting, Deadline deadline) {
  meet(meeting, deadline, three_rounds);
}

}  // namespace nzcl::bootstrap
