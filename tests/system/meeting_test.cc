// Meetings over real sockets on the loopback address, with threads as members. Some members are missing, and
// some strangers come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <asio.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/control.h"
#include "runtime/bootstrap/file_meeting.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/listener.h"
#include "runtime/bootstrap/local.h"
#include "runtime/bootstrap/socket_meeting.h"
#include "runtime/bootstrap/star.h"
#include "runtime/bootstrap/string_list.h"
#include "tests/system/meeting.h"

namespace nzcl::bootstrap {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// What a member of a local meeting learns from one round, or its error.
std::future<std::string> gather(Bootstrap& member, const std::string& mine,
                                std::chrono::milliseconds time = kLong) {
  return std::async(std::launch::async, [&member, mine, time]() -> std::string {
    try {
      std::string all;
      for (const std::string& part : member.allgather(mine, in(time))) all += part;
      return all;
    } catch (const Error& e) {
      return e.what();
    }
  });
}

TEST(LocalMeeting, WhoComesTooLateMeetsTheOthersWhenAllComeAgain) {
  const auto meeting = std::make_shared<LocalMeeting>(2);
  const auto a = make_local_bootstrap(meeting, 0);
  EXPECT_THAT(gather(*a, "x", kShort).get(), HasSubstr("did not come to the meeting in time: member 1"));
  const auto b = make_local_bootstrap(meeting, 1), again = make_local_bootstrap(meeting, 0);
  auto of_b = gather(*b, "b"), of_a = gather(*again, "a");
  EXPECT_EQ(of_a.get(), "ab");
  EXPECT_EQ(of_b.get(), "ab");
}

TEST(LocalMeeting, RoundsOfDifferentMeetingsAreNotMixed) {
  const auto meeting = std::make_shared<LocalMeeting>(2);
  const auto a = make_local_bootstrap(meeting, 0), b = make_local_bootstrap(meeting, 1);
  auto first_of_a = gather(*a, "a"), first_of_b = gather(*b, "b");
  EXPECT_EQ(first_of_a.get(), "ab");
  EXPECT_EQ(first_of_b.get(), "ab");
  // Member 1 fails for a reason of its own, and begins anew. Whichever comes first, they do not meet.
  auto second_of_a = gather(*a, "2");
  const auto b_again = make_local_bootstrap(meeting, 1);
  auto anew_of_b = gather(*b_again, "B");
  EXPECT_THAT(second_of_a.get(), HasSubstr("has begun a new one"));
  const auto a_again = make_local_bootstrap(meeting, 0);
  EXPECT_EQ(gather(*a_again, "A").get(), "AB");
  EXPECT_EQ(anew_of_b.get(), "AB");
}

TEST(StarMeeting, GathersEverybodysBytesInOrder) {
  EXPECT_THAT(run({{2}, {0}, {1}}, free_port(), kLong, three_rounds), Each(""));
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
                  [](Bootstrap& b, Deadline deadline) {
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
  const auto errors = run({{0}, {1}, {2}}, free_port(), kLong, [](Bootstrap& b, Deadline deadline) {
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
                  [](Bootstrap& b, Deadline deadline) {
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
        three_rounds(*make_socket_bootstrap(settings(static_cast<int>(i), size), {.host = "some-host",
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
    three_rounds(*make_file_bootstrap(settings(1, 2), path), in(kShort));
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
          three_rounds(*make_file_bootstrap(settings(i, 3), path), in(kLong));
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
        StarSettings s = settings(i, 2);
        s.who += "\xff";
        make_file_bootstrap(std::move(s), path)->allgather("\xff", in(kShort));
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

// --- The control plane, on the same meeting

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
  std::vector<std::jthread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      Plane& plane = *all[static_cast<std::size_t>(i)];
      const auto bootstrap = make_local_bootstrap(meeting, i);
      plane.control = ControlPlane::join(*bootstrap, names, in(kLong), [&plane] { ++plane.failures; });
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

TEST(ControlPlaneGather, OneThatGivesUpTellsTheOthersWhyAndNothingElseFails) {
  const auto all = planes(3);
  on_all(all, [](Plane& p, std::size_t i) {
    if (i == 1) {
      p.control->give_up("g", {0, 1, 2}, {ErrorCode::system, "no memory \xff"});
    } else {
      try {
        p.control->gather("g", {0, 1, 2}, "x", in(kLong));
        ADD_FAILURE() << "it ended well";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::system);
        EXPECT_THAT(e.what(), HasSubstr("rank 1 could not go on: no memory"));
      }
    }
    EXPECT_TRUE(p.control->gather("next", {0, 1, 2}, "x", in(kLong)).has_value());
    EXPECT_FALSE(p.control->failed());
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
