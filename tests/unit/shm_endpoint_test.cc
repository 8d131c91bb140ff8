// Tests how endpoints of shm meet, what they refuse, what they leave in /dev/shm, and how they notice that a
// peer has ended.
#include "verbs/shm/endpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "verbs/shm/address.h"
#include "verbs/shm/handshake.h"
#include "verbs/shm/passing.h"
#include "verbs/shm/trial.h"

namespace nzcl::verbs::shm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::chrono::seconds kPatience{30};

std::string connect(Endpoint& endpoint, const std::vector<std::string>& addresses,
                    std::chrono::nanoseconds patience = kPatience) {
  try {
    endpoint.connect(addresses, Clock::now() + patience);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

class ShmEndpointsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto info = probe(); !info.available) GTEST_SKIP() << info.detail;
    own = own_device.open_endpoint({.self = 0, .peers = 2, .arrivals = 64});
    peer = peers_device.open_endpoint({.self = 1, .peers = 2, .arrivals = 64});
  }
  /// Connects both, each by the other's address or by what takes its place. Returns what they say.
  std::array<std::string, 2> join(const std::string& for_own, const std::string& for_peer,
                                  std::chrono::nanoseconds patience = kPatience) {
    std::array<std::string, 2> errors;
    std::thread other([&] { errors[1] = connect(*peer, {for_peer, ""}, patience); });
    errors[0] = connect(*own, {"", for_own}, patience);
    other.join();
    return errors;
  }
  void join() {
    const std::string a = own->address_for(1), b = peer->address_for(0);
    ASSERT_THAT(join(b, a), testing::Each(IsEmpty()));
  }
  static std::string changed(const std::string& text, const std::function<void(AddressStart&)>& change) {
    Address address = Address::decode(text, 2);
    change(address.start);
    return address.encode();
  }
  /// Posts one write from the peer to memory of `own`.
  void post(RemoteMemory to, std::uint32_t bytes, std::optional<std::uint32_t> immediate = 1) {
    const verbs::Segment segment{source.data(), bytes, nullptr};
    const Write write{.peer = 0, .segments = {&segment, 1}, .target = to, .immediate = immediate};
    ASSERT_EQ(peer->post({&write, 1}), 1u);
  }
  /// What `own` finds when it polls twice.
  std::vector<Completion> poll_own() {
    std::vector<Completion> all;
    for (int i = 0; i < 2; ++i) {
      std::array<Completion, 8> some;
      const std::size_t n = own->poll(some);
      all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
    }
    return all;
  }

  ShmDevice own_device, peers_device;
  std::unique_ptr<Endpoint> own, peer;
  std::vector<std::byte> source = std::vector<std::byte>(64 << 10, std::byte{7}),
                         target = std::vector<std::byte>(64 << 10);
};

TEST_F(ShmEndpointsTest, ConnectsWhoeverCallsFirst) { join(); }

TEST_F(ShmEndpointsTest, TheirNamesAreForThisUserOnlyAndGoWhenAllAreConnected) {
  const std::string path = Address::decode(own->address_for(1), 2).start.name.path();
  struct stat about {};
  ASSERT_EQ(::lstat(path.c_str(), &about), 0);
  EXPECT_TRUE(S_ISSOCK(about.st_mode));
  EXPECT_EQ(about.st_mode & 07777u, 0600u);
  join();
  EXPECT_NE(::lstat(path.c_str(), &about), 0);
}

TEST_F(ShmEndpointsTest, AnEndpointThatIsNeverConnectedLeavesNoName) {
  const std::string path = Address::decode(own->address_for(1), 2).start.name.path();
  own.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ShmEndpointsTest, ACallerWithoutTheTokenIsNotTheOneWhoIsAwaited) {
  const std::string wrong = changed(own->address_for(1), [](AddressStart& a) { a.token ^= 1; });
  const auto errors = join(peer->address_for(0), wrong, std::chrono::seconds(1));
  EXPECT_THAT(errors[0], HasSubstr("not connected in time with peer(s) 1"));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("taking descriptors from peer 0"), HasSubstr("failed or ended")));
}

TEST_F(ShmEndpointsTest, StrangersAreDroppedAndThePeerIsConnectedAllTheSame) {
  const Name name = Address::decode(own->address_for(1), 2).start.name;
  std::vector<Fd> strangers;
  for (int i = 0; i < 6; ++i) {
    int error = 0;
    strangers.push_back(call(name, error));
    ASSERT_EQ(error, 0);
    Greeting greeting{.token = 4711, .from = 1};
    std::size_t bytes = sizeof greeting;
    if (i == 1) greeting.magic = 1;
    if (i == 2) bytes = 3;
    if (i == 3) bytes = 0;
    if (i == 4) strangers.back() = Fd();
    const auto message = std::as_bytes(std::span(&greeting, 1)).first(bytes);
    if (i < 3) {
      EXPECT_EQ(send_message(strangers.back(), message, std::array{0}), 0);
    }
  }
  join();
}

TEST_F(ShmEndpointsTest, MemoryThatIsNotWhatTheAddressSpeaksOfIsRefused) {
  const std::string wrong = changed(peer->address_for(0), [](AddressStart& a) { a.nonce ^= 1; });
  EXPECT_THAT(join(wrong, own->address_for(1))[0], HasSubstr("not what the address of peer 1 speaks of"));
}

TEST_F(ShmEndpointsTest, NobodyWaitsForAPeerOnceItIsSaidThatTheCommunicatorHasFailed) {
  std::atomic<bool> halted{false};
  const auto endpoint = own_device.open_endpoint({.self = 0, .peers = 2, .arrivals = 64, .halted = &halted});
  const std::string own_address = endpoint->address_for(1), address = peer->address_for(0);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    halted = true;
  });
  EXPECT_THAT(connect(*endpoint, {"", address}), HasSubstr("has failed while its members connected"));
}

TEST_F(ShmEndpointsTest, WhoDoesNotListenAnyMoreIsNamedAtOnce) {
  const std::string address = own->address_for(1);
  own.reset();
  EXPECT_THAT(connect(*peer, {address, ""}),
              AllOf(HasSubstr("calling peer 0"), HasSubstr("failed or ended")));
}

TEST_F(ShmEndpointsTest, ImpossibleAddressesAreRefused) {
  const std::string good = peer->address_for(0);
  EXPECT_THAT(connect(*own, {"", changed(good, [](AddressStart& a) { a.entries = 63; })}),
              HasSubstr("rings"));
  EXPECT_THAT(connect(*own, {"", changed(good, [](AddressStart& a) { a.segment_bytes *= 2; })}),
              HasSubstr("rings"));
  EXPECT_THAT(connect(*own, {"", "no address"}),
              AllOf(HasSubstr("no usable address"), HasSubstr("connecting to peer 1")));
}

TEST_F(ShmEndpointsTest, TellsOnlyOfItsOwnMemorySoThatAnothersMayBeReleasedMeanwhile) {
  const auto mine = peers_device.allocate(8192), others = peers_device.allocate(4096);
  peer = peers_device.open_endpoint({.self = 1, .peers = 2, .arrivals = 64, .allocated = mine});
  const std::string address = peer->address_for(0);
  const auto memories = Address::decode(address, 2).memories;
  ASSERT_EQ(memories.size(), 1u);
  EXPECT_EQ(memories[0].address, reinterpret_cast<std::uint64_t>(mine.data()));
  peers_device.release(others);
  EXPECT_THAT(join(address, own->address_for(1)), testing::Each(IsEmpty()));
  EXPECT_NE(own->view(1, {.address = memories[0].address, .key = 0}, 8192), nullptr);
}

TEST_F(ShmEndpointsTest, WhatIsNotRegisteredIsNotWrittenAndWhoWantedItIsLost) {
  const std::vector<std::byte> before = target;
  const auto region = own_device.register_memory(std::span(target).subspan(4096, 4096), MemoryKind::host);
  const RemoteMemory good = region->remote();
  for (const RemoteMemory bad : {RemoteMemory{good.address, good.key ^ std::uint64_t{1} << 40},
                                 good.offset(4090), RemoteMemory{good.address - 1, good.key}}) {
    if (!own) SetUp();
    join();
    post(bad, 8, 17);
    const auto found = poll_own();
    ASSERT_EQ(found.size(), 1u) << "the immediate is not believed either";
    EXPECT_EQ(found[0].kind, Completion::Kind::failed);
    EXPECT_EQ(found[0].peer, 1u);
    EXPECT_THAT(own->failure(), HasSubstr("shm: peer 1 wanted to write where nothing is registered"));
    post(good, 8, 18);
    EXPECT_THAT(poll_own(), IsEmpty()) << "nothing more is taken from that peer";
    EXPECT_EQ(target, before);
    own.reset();
    peer.reset();
  }
}

TEST_F(ShmEndpointsTest, WhatCameThroughTheRingIsThereWhenALaterImmediateArrives) {
  const auto shared = own_device.allocate(4096);
  own = own_device.open_endpoint({.self = 0, .peers = 2, .arrivals = 64});
  join();
  const auto region = own_device.register_memory(target, MemoryKind::host);
  post(region->remote(), 5000, std::nullopt);  // which the peer has not mapped
  post({.address = reinterpret_cast<std::uint64_t>(shared.data()), .key = 0}, 8, 17);
  std::array<Completion, 8> found;
  ASSERT_EQ(own->poll(found), 1u);
  EXPECT_EQ(found[0].immediate, 17u);
  EXPECT_TRUE(std::equal(target.begin(), target.begin() + 5000, source.begin()));
  EXPECT_EQ(target[5000], std::byte{0});
  EXPECT_EQ(shared[7], source[7]);
}

TEST_F(ShmEndpointsTest, WhenAPeersRingIsFullWritesWaitUntilItPolls) {
  join();
  const auto region = own_device.register_memory(target, MemoryKind::host);
  const verbs::Segment segment{source.data(), 60'000, nullptr};
  const Write write{
      .peer = 0, .segments = {&segment, 1}, .target = region->remote(), .immediate = std::nullopt};
  std::array<Completion, 64> completions;
  std::size_t accepted = 0;
  while (peer->post({&write, 1}) == 1) {
    ++accepted;
    peer->poll(completions);
  }
  EXPECT_EQ(accepted, kBounceBytes / (60'000 + kLine));
  EXPECT_EQ(peer->in_flight(), 0u);
  own->poll(completions);
  EXPECT_EQ(peer->post({&write, 1}), 1u);
}

/// A peer in a child process, which is killed after the connection was made.
TEST_F(ShmEndpointsTest, APeerThatIsKilledIsNoticedWhenItsRingIsFull) {
  int to_parent[2];
  ASSERT_EQ(::pipe(to_parent), 0);
  const std::string own_address = own->address_for(1);
  const pid_t child = ::fork();
  if (child == 0) {
    ShmDevice device;
    const auto endpoint = device.open_endpoint({.self = 1, .peers = 2, .arrivals = 64});
    const std::string address = endpoint->address_for(0);
    if (::write(to_parent[1], address.data(), address.size()) < 0) ::_exit(1);
    if (!connect(*endpoint, {own_address, ""}).empty() || ::write(to_parent[1], "c", 1) < 0) ::_exit(2);
    while (true) ::pause();
  }
  std::string address(own_address.size(), '\0');
  ASSERT_EQ(::read(to_parent[0], address.data(), address.size()), static_cast<ssize_t>(address.size()));
  ASSERT_EQ(connect(*own, {"", address}), "");
  char connected = 0;
  ASSERT_EQ(::read(to_parent[0], &connected, 1), 1);
  for (const int end : to_parent) ::close(end);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(std::filesystem::exists(Address::decode(address, 2).start.name.path()));
  for (const std::optional<std::uint32_t> immediate : {std::optional<std::uint32_t>(), {7}}) {
    const verbs::Segment segment{source.data(), 60'000, nullptr};
    const Write write{
        .peer = 1, .segments = {&segment, 1}, .target = {.address = 4096, .key = 1}, .immediate = immediate};
    std::array<Completion, 8> completions;
    std::string failure;
    for (int i = 0; i < 10000 && failure.empty(); ++i) {
      own->post({&write, 1});
      const std::size_t n = own->poll(completions);
      for (std::size_t c = 0; c < n; ++c) {
        if (completions[c].kind == Completion::Kind::failed) failure = own->failure();
      }
    }
    EXPECT_THAT(failure, immediate ? testing::Matcher<std::string>(IsEmpty()) : HasSubstr("peer 1 has ended"))
        << "it is reported once";
  }
}

/// A name at which nobody listens any more, as a killed process leaves it.
std::string leave_name(std::time_t age, bool listens, Fd& socket) {
  const std::string path = Name::random().path();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  socket = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  if (listens) {
    EXPECT_EQ(::listen(socket.get(), 4), 0);
  } else {
    socket = Fd();
  }
  const timespec then{.tv_sec = ::time(nullptr) - age, .tv_nsec = 0};
  const std::array times{then, then};
  EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW), 0);
  return path;
}

TEST(ShmLeftovers, OldNamesWhereNobodyListensGoAndAllOthersStay) {
  if (const auto info = probe(); !info.available) GTEST_SKIP() << info.detail;
  Fd none, listening;
  const std::string dead = leave_name(3600, false, none), young = leave_name(0, false, none),
                    alive = leave_name(3600, true, listening);
  const std::string file = Name::random().path();
  Fd(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const timespec then{.tv_sec = ::time(nullptr) - 3600, .tv_nsec = 0};
  const std::array times{then, then};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times.data(), 0), 0);
  DeviceOptions options;
  options.transport = "shm";
  verbs::open_device(options);
  EXPECT_FALSE(std::filesystem::exists(dead));
  for (const std::string& path : {young, alive, file}) {
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
    ::unlink(path.c_str());
  }
}

class ShmMembersTrialTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto info = probe(); !info.available) GTEST_SKIP() << info.detail;
    own = std::make_unique<ShmTrial>(options);
    peer = std::make_unique<ShmTrial>(options);
  }
  const TrialOptions options{.self = 0, .peers = 2, .endpoints = 1};
  std::unique_ptr<ShmTrial> own, peer;
};

TEST_F(ShmMembersTrialTest, SucceedsBetweenMembersThatSeeOneFolder) {
  EXPECT_EQ(own->try_peer(peer->offer()), "");
  EXPECT_EQ(peer->try_peer(own->offer()), "");
}

TEST_F(ShmMembersTrialTest, SaysWhatIsNotShared) {
  std::string offer = peer->offer();
  offer[0] = static_cast<char>(~offer[0]);
  EXPECT_THAT(own->try_peer(offer),
              AllOf(HasSubstr("sees another /dev/shm"), HasSubstr("NZCL_TRANSPORT=tcp")));
  EXPECT_THAT(own->try_peer(""), HasSubstr("wrong length"));
  EXPECT_THAT(own->try_peer(peer->offer() + "x"), HasSubstr("wrong length"));
}

TEST_F(ShmMembersTrialTest, AMemberThatHasEndedIsNotReached) {
  const std::string offer = peer->offer();
  peer.reset();
  EXPECT_THAT(own->try_peer(offer), HasSubstr("No such file"));
}

TEST(ShmPassing, CarriesDescriptorsWithAMessageAndSaysWhenTheOtherEndIsClosed) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd one(ends[0]);
  Fd other(ends[1]);
  std::array<std::byte, 4> message{}, seen{};
  message[3] = std::byte{9};
  EXPECT_EQ(receive_message(one, seen).error, EAGAIN);
  const Fd file = segment::make_memory_fd(4096);
  const std::uint64_t number = 4711;
  ASSERT_EQ(::pwrite(file.get(), &number, sizeof number, 0), 8);
  ASSERT_EQ(send_message(other, message, std::array{file.get(), file.get()}), 0);
  const Received received = receive_message(one, seen);
  EXPECT_EQ(received.error, 0);
  EXPECT_EQ(received.bytes, message.size());
  EXPECT_EQ(seen, message);
  ASSERT_EQ(received.descriptors.size(), 2u);
  for (const Fd& fd : received.descriptors) {
    std::uint64_t found = 0;
    EXPECT_EQ(::pread(fd.get(), &found, sizeof found, 0), 8);
    EXPECT_EQ(found, number);
    EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  other = Fd();
  EXPECT_EQ(receive_message(one, seen).error, EPIPE);
  EXPECT_NE(send_message(one, message, {}), 0);
}

}  // namespace
}  // namespace nzcl::verbs::shm
