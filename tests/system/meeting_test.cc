// Meetings over real sockets on the loopback address, with threads as members. Some members are missing, and
// some strangers come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <asio.hpp>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/file_meeting.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/listener.h"
#include "runtime/bootstrap/local.h"
#include "runtime/bootstrap/secure_stream.h"
#include "runtime/bootstrap/socket_meeting.h"
#include "runtime/bootstrap/star_control.h"
#include "runtime/bootstrap/string_list.h"
#include "tests/system/meeting.h"
#include "verbs/descriptors.h"

namespace nzcl::bootstrap {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// What a member of a local meeting learns from one round, or its error.
std::future<std::string> gather(Allgather& member, const std::string& mine,
                                std::chrono::milliseconds time = kLong) {
  return std::async(std::launch::async, [&member, mine, time]() -> std::string {
    try {
      std::string all;
      for (const std::string& part : member(mine, in(time))) all += part;
      return all;
    } catch (const Error& e) {
      return e.what();
    }
  });
}

TEST(LocalMeeting, WhoComesTooLateMeetsTheOthersWhenAllComeAgain) {
  const auto meeting = std::make_shared<LocalMeeting>(2);
  auto a = local_allgather(meeting, 0);
  EXPECT_THAT(gather(a, "x", kShort).get(), HasSubstr("did not come to the meeting in time: member 1"));
  auto b = local_allgather(meeting, 1), again = local_allgather(meeting, 0);
  auto of_b = gather(b, "b"), of_a = gather(again, "a");
  EXPECT_EQ(of_a.get(), "ab");
  EXPECT_EQ(of_b.get(), "ab");
}

TEST(LocalMeeting, RoundsOfDifferentMeetingsAreNotMixed) {
  const auto meeting = std::make_shared<LocalMeeting>(2);
  auto a = local_allgather(meeting, 0), b = local_allgather(meeting, 1);
  auto first_of_a = gather(a, "a"), first_of_b = gather(b, "b");
  EXPECT_EQ(first_of_a.get(), "ab");
  EXPECT_EQ(first_of_b.get(), "ab");
  // Member 1 fails for a reason of its own, and begins anew. Whichever comes first, they do not meet.
  auto second_of_a = gather(a, "2");
  auto b_again = local_allgather(meeting, 1);
  auto anew_of_b = gather(b_again, "B");
  EXPECT_THAT(second_of_a.get(), HasSubstr("has begun a new one"));
  auto a_again = local_allgather(meeting, 0);
  EXPECT_EQ(gather(a_again, "A").get(), "AB");
  EXPECT_EQ(anew_of_b.get(), "AB");
}

TEST(StarMeeting, GathersEverybodysBytesInOrder) {
  EXPECT_THAT(run({{2}, {0}, {1}}, free_port(), kLong, three_rounds), Each(""));
}

TEST(StarMeeting, MoreMembersThanMayBeUnprovedAtATimeComeAtOnce) {
  constexpr int kMembers = static_cast<int>(kUnprovedLimit) + 44;
  verbs::make_room_for_descriptors(8 * kMembers);  // all of them are in this process
  const auto said = [](int from, int to) { return std::to_string(from) + " to " + std::to_string(to); };
  std::vector<Member> members;
  for (int i = 0; i < kMembers; ++i) members.push_back({.position = i, .size = kMembers});
  const auto tell = [&](Rounds& b, Deadline deadline) {
    std::vector<std::string> mine, expected;
    for (int peer = 0; peer < kMembers; ++peer) {
      mine.push_back(said(b.rank(), peer));
      expected.push_back(said(peer, b.rank()));
    }
    EXPECT_EQ(b.tell_each(mine, deadline), expected);
  };
  EXPECT_THAT(run(members, free_port(), kForMany, tell), Each(""));
}

TEST(StarMeeting, AllAreToldHowEachIntroducesItself) {
  // With as many members as share the threads of a hub, and with fewer.
  for (const int size : {1, 3, 2 * static_cast<int>(kStreamsPerThread)}) {
    verbs::make_room_for_descriptors(static_cast<std::size_t>(8 * size));
    const int port = free_port();
    std::vector<std::string> expected;
    for (int i = 0; i < size; ++i) {
      expected.push_back("I am \"" + std::to_string(i) + "\"\n");
      if (i % 2 == 1) expected.back() = "";
    }
    std::vector<std::jthread> threads;
    for (int i = 0; i < size; ++i) {
      threads.emplace_back([&, i] {
        const auto control = ControlPlane::join(*join({.position = i, .size = size}, port), in(kForMany),
                                                expected[static_cast<std::size_t>(i)]);
        EXPECT_EQ(control->introductions(), expected) << i;
        EXPECT_TRUE(control->leave(in(kForMany)));
      });
    }
  }
}

TEST(StarMeeting, NamesWhoIsMissingToEverybodyThatCame) {
  EXPECT_THAT(run({{0}, {1}}, free_port(), kShort, three_rounds), Each(HasSubstr("rank 2 did not come")));
}

TEST(StarMeeting, WithoutRankZeroTheOthersSayWhereTheyLooked) {
  EXPECT_THAT(run({{1}, {2}}, free_port(), kShort, three_rounds),
              Each(AllOf(HasSubstr("rank 0 was not reached at the test"), HasSubstr("refused"))));
}

TEST(StarMeeting, AnotherSecretIsRefusedAndTheRestGoOnWaiting) {
  const auto errors = run({{0}, {1}, {2, 3, "wrong"}}, free_port(), kShort, three_rounds);
  EXPECT_THAT(errors[2], AllOf(HasSubstr("secret"), HasSubstr("rank 0")));
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 2 did not come"), HasSubstr("refused: 127.0.0.1")));
  EXPECT_THAT(errors[1], HasSubstr("rank 2 did not come"));
}

TEST(StarMeeting, TwoOfOneRankFailForAll) {
  const auto errors = run({{0}, {1}, {1}}, free_port(), kLong, three_rounds);
  EXPECT_THAT(errors, Each(HasSubstr("both claim to be rank 1")));
}

TEST(StarMeeting, AnotherSizeFailsForAll) {
  const auto errors = run({{0}, {1}, {2, 4}}, free_port(), kLong, three_rounds);
  EXPECT_THAT(errors, Each(HasSubstr("expects 4 members")));
}

TEST(StarMeeting, AnotherVersionIsRefusedByName) {
  const int port = free_port();
  std::vector<std::string> errors;
  std::jthread hub([&] { errors = run({{0}, {1}}, port, kLong, three_rounds); });
  const auto context = make_psk_context("the secret of the job");
  asio::io_context io;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        const asio::ip::tcp::endpoint at(asio::ip::address_v4::loopback(), static_cast<unsigned short>(port));
        for (std::shared_ptr<Stream> stream; !stream;) {
          try {
            stream = co_await connect_secure(*context, at, std::chrono::seconds(3));
            co_await write_frame(*stream, R"({"session":"s","index":2,"size":3,"who":"rank 2 of old"})");
            EXPECT_THAT(co_await read_frame(*stream, kAnswerLimit),
                        HasSubstr("rank 2 of old meets in version 1"));
          } catch (const std::system_error&) {  // nobody listens there yet
          }
        }
      },
      asio::detached);
  io.run();
  hub.join();
  EXPECT_THAT(errors, Each(HasSubstr("rank 2 of old meets in version 1, and this one in " +
                                     std::to_string(kMeetingVersion))));
}

TEST(StarMeeting, NamesMayBeOfBytesThatAreNotText) {
  EXPECT_THAT(run({{.position = 0, .session = "\xff\xfe"},
                   {.position = 1, .session = "\xff\xfe"},
                   {.position = 2, .session = "\xff\xfe"}},
                  free_port(), kLong, three_rounds),
              Each(""));
  const auto errors = run({{.position = 0, .session = "\xff"}, {.position = 1, .size = 4, .session = "\xff"}},
                          free_port(), kLong, three_rounds);
  EXPECT_THAT(errors, Each(HasSubstr("expects 4 members")));
}

TEST(StarMeeting, SessionsShareAPort) {
  const int port = free_port();
  std::vector<Member> members;
  for (const char* session : {"a", "b", "c"}) {
    for (int i = 0; i < 3; ++i) members.push_back({i, 3, "the secret of the job", session});
  }
  EXPECT_THAT(run(members, port, kLong, three_rounds), Each(""));
}

TEST(StarMeeting, PartsOfAnySizeComeWhole) {
  EXPECT_THAT(run({{0}, {1}, {2}}, free_port(), kLong,
                  [](Rounds& b, Deadline deadline) {
                    for (const std::size_t size : {65535, 65536, 65537, 131072, 131073, 1000003}) {
                      const auto part = [&](int rank) {
                        return std::string(size, static_cast<char>('a' + rank)) + std::to_string(rank);
                      };
                      const std::vector<std::string> expected{part(0), part(1), part(2)};
                      EXPECT_TRUE(b.allgather(part(b.rank()), deadline) == expected) << size;
                    }
                  }),
              Each(""));
}

TEST(StarMeeting, AMemberThatLeavesEarlyIsNamed) {
  const auto errors = run({{0}, {1}, {2}}, free_port(), kLong, [](Rounds& b, Deadline deadline) {
    b.allgather("x", deadline);
    if (b.rank() != 2) b.allgather("y", deadline);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 2 (a thread) left the meeting"));
  EXPECT_THAT(errors[1], HasSubstr("rank 2 (a thread) left the meeting"));
  EXPECT_EQ(errors[2], "");
}

TEST(StarMeeting, StrangersAreRefusedAndDisturbNobody) {
  const int port = free_port();
  std::jthread stranger([port](std::stop_token stop) {
    asio::io_context io;
    for (int i = 0; !stop.stop_requested(); ++i) {
      try {
        tcp::socket socket(io);
        socket.connect({asio::ip::address_v4::loopback(), static_cast<unsigned short>(port)});
        const std::string garbage = i % 2 ? "GET / HTTP/1.0\r\n\r\n" : std::string(5000, '\xff');
        asio::write(socket, asio::buffer(garbage));
      } catch (const std::exception&) {
        std::this_thread::yield();  // the port is not listened on yet, or not any more
      }
    }
  });
  std::vector<Member> members{{0}, {1}, {2}};
  EXPECT_THAT(run(members, port, kLong,
                  [](Rounds& b, Deadline deadline) {
                    // Member 2 waits, so that the strangers come first.
                    if (b.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
                    three_rounds(b, deadline);
                  }),
              Each(""));
}

using asio::ip::make_address;
using Resolve = std::function<Addresses(const std::string&)>;

Resolve always(const Addresses& addresses) {
  return [addresses](const std::string&) { return addresses; };
}

/// Runs a meeting of as many members as there are resolvers. Returns the text of each member's error.
std::vector<std::string> meet_by_name(const std::string& secret, const std::vector<Resolve>& resolvers,
                                      std::chrono::milliseconds time = kLong) {
  const int port = free_port();
  std::vector<std::string> errors(resolvers.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < resolvers.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto size = static_cast<int>(resolvers.size());
        meet_for_three_rounds(
            *make_socket_meeting(settings(static_cast<int>(i), size), {.host = "some-host",
                                                                       .port = port,
                                                                       .why = "the test",
                                                                       .secret = secret,
                                                                       .resolve = resolvers[i]}),
            in(time));
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

const Addresses kV4{make_address("127.0.0.1")};

TEST(SocketMeeting, ANameThatHasNoAddressYetIsAskedForAgain) {
  for (const std::string secret : {"", "the secret of the job"}) {
    const auto later = [](int failures) {
      return [failures, asked = std::make_shared<int>()](const std::string&) {
        if ((*asked)++ < failures) throw std::system_error(asio::error::host_not_found);
        return kV4;
      };
    };
    EXPECT_THAT(meet_by_name(secret, {later(1), later(2), later(0)}), Each("")) << secret;
  }
}

TEST(SocketMeeting, ANameThatNeverHasAnAddressIsNamedAtTheDeadline) {
  const Resolve never = [](const std::string&) -> Addresses {
    throw std::system_error(asio::error::host_not_found);
  };
  EXPECT_THAT(meet_by_name("", {never, never}, kShort), Each(HasSubstr("cannot resolve the host some-host")));
}

TEST(SocketMeeting, EveryAddressOfANameIsTried) {
  const Addresses several{make_address("::1"), make_address("127.0.0.2"), make_address("127.0.0.1")};
  for (const std::string secret : {"", "the secret of the job"})
    EXPECT_THAT(meet_by_name(secret, {always(kV4), always(several)}), Each("")) << secret;
}

TEST(SocketMeeting, RankZeroListensOnEveryAddressOfLoopback) {
  const Addresses v6{make_address("::1")}, both{make_address("::1"), make_address("127.0.0.1")};
  try {
    asio::io_context io;
    tcp::acceptor(io, tcp::endpoint(v6.front(), 0));
  } catch (const std::system_error& e) {
    GTEST_SKIP() << "no IPv6 here: " << e.what();
  }
  for (const std::string secret : {"", "the secret of the job"})
    EXPECT_THAT(meet_by_name(secret, {always(both), always(kV4), always(v6)}), Each("")) << secret;
}

TEST(Listener, LeavesOutAddressesThatThisHostLacks) {
  asio::io_context io;
  const Addresses absent{make_address("203.0.113.7")};
  const Addresses both{absent.front(), kV4.front()};
  EXPECT_GT(Listener(io, both, free_port(), "the test").port(), 0);
  EXPECT_THROW(Listener(io, absent, free_port(), "the test"), std::system_error);
}

// Debian's /etc/hosts gives a host's own name the address 127.0.1.1. Other hosts know it by another one.
TEST(SocketMeeting, AHostsOwnNameOfLoopbackDoesNotShutOutOtherHosts) {
  const Addresses own{make_address("127.0.1.1")};
  const Addresses elsewhere{make_address(host_addresses().front())};
  EXPECT_THAT(meet_by_name("the secret of the job", {always(own), always(elsewhere)}), Each(""));
  const auto alone = meet_by_name("", {always(own), always(elsewhere)}, kShort);
  EXPECT_THAT(alone[0], HasSubstr("which only this host can reach"));
}

/// What a member says of a file that it does not believe.
std::string refusal_of_file(const std::string& path) {
  try {
    meet_for_three_rounds(*make_file_meeting(settings(1, 2), path), in(kShort));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(FileMeeting, AFileThatAnotherUserMayHaveWrittenIsNotBelieved) {
  const std::string path = testing::TempDir() + "nzcl_foreign_" + std::to_string(::getpid());
  std::ofstream(path) << "{}";
  ASSERT_EQ(::chmod(path.c_str(), 0622), 0);
  EXPECT_THAT(refusal_of_file(path), AllOf(HasSubstr(path), HasSubstr("other users may write to it")));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(refusal_of_file(path), HasSubstr("a file that is not nzcl's"));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_THAT(refusal_of_file(path), HasSubstr("it belongs to user 65534, not to user 0"));
  }
  const std::string link = path + "_link";
  std::filesystem::create_symlink(path, link);
  EXPECT_THAT(refusal_of_file(link), HasSubstr("is not believed"));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(refusal_of_file(path), HasSubstr("not a regular file"));
  ::unlink(path.c_str());
  ::unlink(link.c_str());
}

TEST(FileMeeting, MeetsInSpiteOfLeftovers) {
  const std::string path = testing::TempDir() + "nzcl_meeting_" + std::to_string(::getpid());
  for (const std::string& leftover : {std::string(), std::string("garbage"),
                                      "{\"hosts\":[\"127.0.0.1\"],\"host_id\":\"\",\"port\":" +
                                          std::to_string(free_port()) + ",\"secret\":\"old\"}"}) {
    if (!leftover.empty()) std::ofstream(path) << leftover;
    std::vector<std::string> errors(3);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        try {
          // Member 0 waits, so that the others find the leftover file.
          if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          meet_for_three_rounds(*make_file_meeting(settings(i, 3), path), in(kLong));
        } catch (const std::exception& e) {
          errors[static_cast<std::size_t>(i)] = e.what();
        }
      });
    }
    threads.clear();
    EXPECT_THAT(errors, Each(""));
    EXPECT_FALSE(std::ifstream(path).good()) << "the file is removed when all have come";
  }
}

TEST(FileMeeting, PathsAndNamesMayBeOfBytesThatAreNotText) {
  const std::string path = testing::TempDir() + "nzcl_\xff\xfe_" + std::to_string(::getpid());
  std::vector<std::string> errors(2);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      try {
        MeetingSettings s = settings(i, 2);
        s.who += "\xff";
        meet(*make_file_meeting(std::move(s), path), in(kShort),
             [](Rounds& b, Deadline deadline) { b.allgather("\xff", deadline); });
        if (i == 0) throw Error(ErrorCode::aborted, "left");
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(i)] = e.what();
      }
    });
  }
  threads.clear();
  EXPECT_THAT(errors, ElementsAre("left", ""));
}

TEST(FileMeeting, JobFilesDifferBySessionAndLieInAPrivateFolder) {
  EXPECT_NE(job_file("job", "a"), job_file("job", "b"));
  EXPECT_EQ(job_file("", "a"), job_file("", "a"));
  EXPECT_THAT(job_file("../../etc/x", "a"), testing::Not(HasSubstr("/etc")));
}

TEST(StringList, ComesBack) {
  const std::vector<std::string> parts{"", std::string("a\0b", 3), "c"};
  EXPECT_EQ(decode_strings(encode_strings(parts)), parts);
  EXPECT_THROW(decode_strings("abc"), Error);
  EXPECT_THROW(decode_strings(encode_strings({"abcdef"}).substr(0, 7)), Error);
}

/// Runs a meeting over an exchange of threads. Returns the text of each member's error.
std::vector<std::string> exchange(int members, const std::function<void(Meeting&)>& body) {
  const auto local = std::make_shared<LocalMeeting>(members);
  std::vector<std::string> errors(static_cast<std::size_t>(members));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*make_exchange_meeting(settings(rank, members), local_allgather(local, rank)));
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

TEST(ExchangeMeeting, AllMeet) {
  EXPECT_THAT(exchange(3, [](Meeting& meeting) { meet_for_three_rounds(meeting, in(kLong)); }), Each(""));
}

TEST(ExchangeMeeting, TheOthersLearnAtTheNextRoundWhyOneGivesUp) {
  for (const int who : {0, 1}) {
    const auto errors = exchange(3, [who](Meeting& meeting) {
      if (meeting.rank() != who) return meet_for_three_rounds(meeting, in(kLong));
      meeting.give_up({ErrorCode::system, "no memory \xff"}, in(kLong));
      meeting.give_up({ErrorCode::system, "twice"}, in(kLong));  // must not wait for a second round
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(errors[static_cast<std::size_t>(rank)], rank == who ? "" : "no memory \uFFFD");
    }
  }
}

/// A member that has died on its way to the hub, or the hub before others have connected, is missed by
/// whoever carries the bytes, as the control plane of a communicator that is split. Nobody waits for the
/// deadline then.
TEST(ExchangeMeeting, EndsWithWhatCarriesIt) {
  for (const int missing : {0, 2}) {
    const auto local = std::make_shared<LocalMeeting>(3);
    std::atomic<int> away{0};
    std::vector<std::string> errors(3);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const auto ended_by = [&]() -> std::optional<Failure> {
          if (away == 0) return std::nullopt;
          return Failure{ErrorCode::peer_failed, "the missing one died"};
        };
        const auto meeting = make_exchange_meeting(settings(rank, 3), local_allgather(local, rank), ended_by);
        if (rank == missing) {  // tells the others what they need to begin, and is gone
          if (rank == 0) {
            meeting->place(in(kLong));
            meeting->publish(1, in(kLong));  // where nobody answers
          } else {
            meeting->find(in(kLong));
          }
          away = 1;
          return;
        }
        try {
          StarControl(meeting->settings()).meet(*meeting, in(kLong));
        } catch (const Error& e) {
          errors[static_cast<std::size_t>(rank)] = e.what();
        }
      });
    }
    threads.clear();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(errors[static_cast<std::size_t>(rank)], rank == missing ? "" : "the missing one died");
    }
  }
}

TEST(ExchangeMeeting, AMemberOfAnotherVersionIsNoticed) {
  const auto local = std::make_shared<LocalMeeting>(2);
  std::jthread old([&] { local_allgather(local, 1)("D{}", in(kLong)); });
  try {
    meet_for_three_rounds(*make_exchange_meeting(settings(0, 2), local_allgather(local, 0)), in(kLong));
    ADD_FAILURE() << "they have met";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::mismatch);
    EXPECT_THAT(e.what(), HasSubstr("different versions of nzcl"));
  }
}

}  // namespace
}  // namespace nzcl::bootstrap
