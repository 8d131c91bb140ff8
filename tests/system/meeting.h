// Meetings whose members are threads of the test, over real sockets on the loopback address.
#pragma once

#include <gtest/gtest.h>
#include <asio.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/bootstrap/star.h"

namespace nzcl::bootstrap {

using tcp = asio::ip::tcp;

inline int free_port() {
  asio::io_context io;
  return tcp::acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0)).local_endpoint().port();
}

inline Deadline in(std::chrono::milliseconds time) { return Clock::now() + time; }
inline constexpr std::chrono::milliseconds kLong{20000}, kShort{700};

inline StarSettings settings(int position, int size, const std::string& session = "s") {
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

inline std::unique_ptr<Bootstrap> join(const Member& m, int port) {
  const Addresses loopback{asio::ip::address_v4::loopback()};
  if (m.position == 0) {
    const HubPlace place{.addresses = loopback, .port = port, .secret = m.secret};
    return make_star_hub(settings(0, m.size, m.session), [place] { return place; });
  }
  const MeetingPoint point{.addresses = loopback, .port = port, .secret = m.secret};
  return make_star_member(
      settings(m.position, m.size, m.session), [point] { return point; }, true);
}

/// Runs all members of a meeting. Returns the text of each member's error, or "" where there was none.
inline std::vector<std::string> run(const std::vector<Member>& members, int port,
                                    std::chrono::milliseconds time,
                                    const std::function<void(Bootstrap&, Deadline)>& body) {
  std::vector<std::string> errors(members.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(*join(members[i], port), in(time));
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

inline void three_rounds(Bootstrap& b, Deadline deadline) {
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

}  // namespace nzcl::bootstrap
