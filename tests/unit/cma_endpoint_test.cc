// Tests a cma endpoint whose peers are not the processes that gave their addresses, or have died.
#include "verbs/cma/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "verbs/cma/address.h"
#include "verbs/descriptors.h"

namespace nzcl::verbs::cma {
namespace {

using testing::HasSubstr;

class CmaEndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto info = probe(); !info.available) GTEST_SKIP() << info.detail;
    device = std::make_unique<CmaDevice>();
    own = device->open_endpoint({.self = 0, .peers = 2, .arrivals = 64});
    peer = device->open_endpoint({.self = 1, .peers = 2, .arrivals = 64});
  }
  std::string connect(const std::string& address) {
    try {
      const std::vector<std::string> addresses{"", address};
      own->connect(addresses, Clock::now());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  std::string changed_address(const std::function<void(AddressStart&)>& change) {
    Address address = Address::decode(peer->address_for(0), 2);
    change(address.start);
    return address.encode();
  }

  std::unique_ptr<CmaDevice> device;
  std::unique_ptr<Endpoint> own, peer;
};

TEST_F(CmaEndpointTest, ConnectsToWhoGaveTheAddress) { EXPECT_EQ(connect(peer->address_for(0)), ""); }

TEST_F(CmaEndpointTest, RefusesAnotherProcessWithTheSameId) {
  EXPECT_THAT(connect(changed_address([](AddressStart& a) { a.nonce ^= 1; })),
              AllOf(HasSubstr("is not the one that gave this address"), HasSubstr("connecting to peer 1")));
  // The process has a descriptor of that number, but it is not a segment.
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_THAT(connect(changed_address([&](AddressStart& a) { a.segment_fd = ends[0]; })),
              HasSubstr("is not the one that gave this address"));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(CmaEndpointTest, RefusesImpossibleSegments) {
  EXPECT_THAT(connect(changed_address([](AddressStart& a) { a.entries = 63; })), HasSubstr("rings"));
  EXPECT_THAT(connect(changed_address([](AddressStart& a) { a.segment_bytes *= 2; })), HasSubstr("rings"));
  EXPECT_THAT(connect("no address"), HasSubstr("no usable address"));
}

TEST_F(CmaEndpointTest, TellsOnlyOfItsOwnMemorySoThatAnothersMayBeReleasedMeanwhile) {
  CmaDevice shared;
  const auto mine = shared.allocate(8192), others = shared.allocate(4096);
  const auto endpoint = shared.open_endpoint({.self = 1, .peers = 2, .arrivals = 64, .allocated = mine});
  const std::string address = endpoint->address_for(0);
  const auto memories = Address::decode(address, 2).memories;
  ASSERT_EQ(memories.size(), 1u);
  EXPECT_EQ(memories[0].address, reinterpret_cast<std::uint64_t>(mine.data()));
  EXPECT_EQ(memories[0].bytes, mine.size());
  shared.release(others);
  EXPECT_EQ(connect(address), "");
}

bool is_awake(const Endpoint& endpoint) {
  pollfd event{.fd = endpoint.wait_fd(), .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, 0) == 1;
}

std::size_t segment_bytes(Endpoint& endpoint, std::size_t reached) {
  return Address::decode(endpoint.address_for(0), reached).start.segment_bytes;
}

/// An endpoint of a member that is one of eight on its host.
EndpointOptions one_of_eight(std::size_t members, PeerId self) {
  EndpointOptions options{
      .self = self, .peers = members, .arrivals = 100 * members, .level = Level::within, .within_only = true};
  for (PeerId mate = 0; mate < members; ++mate)
    options.levels.push_back(mate / 8 == self / 8 ? Level::within : Level::between);
  return options;
}

TEST_F(CmaEndpointTest, SharesAsMuchMemoryAsThereArePeersOnItsHostHoweverManyThereAreElsewhere) {
  const auto small = device->open_endpoint(one_of_eight(16, 9));
  const std::size_t bytes = segment_bytes(*small, 8);
  EXPECT_LE(bytes, 8u * 256 * 8 + 9 * 64);
  for (const std::size_t members : {std::size_t{1024}, std::size_t{4096}}) {
    const auto endpoint = device->open_endpoint(one_of_eight(members, 9));
    EXPECT_EQ(segment_bytes(*endpoint, 8), bytes) << members;
  }
}

TEST_F(CmaEndpointTest, RingsForEachPeerFollowItsShareOfAllArrivals) {
  const auto bytes_for_each = [&](std::size_t peers) {
    const auto endpoint = device->open_endpoint({.self = 1, .peers = peers, .arrivals = 100 * peers});
    return segment_bytes(*endpoint, peers) / peers;
  };
  EXPECT_LE(bytes_for_each(1024), bytes_for_each(2));
}

/// Members 8 to 15 of 20, each of which writes each of the others through the kernel and wakes it. By the
/// argument, they keep descriptors of all peers, of some, or of one at a time.
class CmaHostTest : public CmaEndpointTest, public testing::WithParamInterface<std::size_t> {};

TEST_P(CmaHostTest, PeersAgreeAboutTheirRingsHoweverFewDescriptorsTheyMayKeep) {
  std::vector<std::unique_ptr<Endpoint>> endpoints;  // of members 8 to 15
  for (PeerId self = 8; self < 16; ++self) {
    EndpointOptions options = one_of_eight(20, self);
    options.peer_descriptors = GetParam();
    endpoints.push_back(device->open_endpoint(options));
  }
  const std::uint64_t before = read_descriptors().open;
  for (PeerId self = 8; self < 16; ++self) {
    std::vector<std::string> addresses(20);
    for (PeerId mate = 8; mate < 16; ++mate) {
      if (mate != self) addresses[mate] = endpoints[mate - 8]->address_for(self);
    }
    endpoints[self - 8]->connect(addresses, Clock::now());
  }
  const std::uint64_t kept = GetParam() == 0 ? 2 * 7 : GetParam();
  EXPECT_EQ(read_descriptors().open, before + 8 * kept);
  std::uint64_t word = 1, landed = 0;
  const auto region = device->register_memory(std::as_writable_bytes(std::span(&word, 1)), MemoryKind::host);
  const verbs::Segment segment{reinterpret_cast<const std::byte*>(&word), 8, region.get()};
  for (PeerId from = 8; from < 16; ++from) {
    for (PeerId to = 8; to < 16; ++to) {
      if (from == to) continue;
      Endpoint& receiver = *endpoints[to - 8];
      std::array<Completion, 8> completions;
      receiver.poll(completions);  // its own writes have been written
      ASSERT_TRUE(receiver.prepare_wait());
      const Write write{.peer = to,
                        .segments = {&segment, 1},
                        .target = {reinterpret_cast<std::uint64_t>(&landed), 0},
                        .immediate = from};
      EXPECT_EQ(endpoints[from - 8]->post({&write, 1}), 1u);
      EXPECT_TRUE(is_awake(receiver));
      ASSERT_EQ(receiver.poll(completions), 1u);
      EXPECT_EQ(completions[0].kind, Completion::Kind::arrived);
      EXPECT_EQ(completions[0].immediate, from);
    }
  }
  EXPECT_EQ(read_descriptors().open, before + 8 * kept);
  EXPECT_EQ(landed, 1u);
}

INSTANTIATE_TEST_SUITE_P(Verbs, CmaHostTest, testing::Values(0, 2, 6, 14));

/// A peer in a child process, which is killed after the connection was made. If the argument is 2, the
/// endpoint may keep descriptors of one peer at a time, and these are another one's then.
class DeadPeerTest : public CmaEndpointTest, public testing::WithParamInterface<std::size_t> {
 protected:
  void SetUp() override {
    CmaEndpointTest::SetUp();
    if (IsSkipped()) return;
    own = device->open_endpoint({.self = 0, .peers = 3, .arrivals = 64, .peer_descriptors = GetParam()});
    peer = device->open_endpoint({.self = 2, .peers = 3, .arrivals = 64});
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    child = ::fork();
    if (child == 0) {
      CmaDevice childs_device;
      childs_device.allocate(4096);
      const auto endpoint = childs_device.open_endpoint({.self = 1, .peers = 3, .arrivals = 64});
      const std::string mine = endpoint->address_for(0);
      if (!endpoint->prepare_wait() || ::write(ends[1], mine.data(), mine.size()) < 0) ::_exit(1);
      while (true) ::pause();
    }
    address.resize(sizeof(AddressStart) + sizeof(SharedMemory));
    ASSERT_EQ(::read(ends[0], address.data(), address.size()), static_cast<ssize_t>(address.size()));
    ::close(ends[0]);
    ::close(ends[1]);
    own->connect(std::vector<std::string>{"", address, peer->address_for(0)}, Clock::now());
    std::memcpy(&shared, address.data() + sizeof(AddressStart), sizeof shared);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);  // from here on another process may get its id
  }
  /// Posts writes of one word until a completion reports a failure, and returns the text of that failure.
  std::string failure(std::optional<std::uint32_t> immediate, RemoteMemory target) {
    std::uint64_t word = 1;
    const auto region =
        device->register_memory(std::as_writable_bytes(std::span(&word, 1)), MemoryKind::host);
    const verbs::Segment segment{reinterpret_cast<const std::byte*>(&word), 8, region.get()};
    const Write write{.peer = 1, .segments = {&segment, 1}, .target = target, .immediate = immediate};
    std::array<Completion, 8> completions;
    for (int i = 0; i < 10000; ++i) {
      own->post({&write, 1});
      const std::size_t n = own->poll(completions);
      for (std::size_t c = 0; c < n; ++c)
        if (completions[c].kind == Completion::Kind::failed) return own->failure();
    }
    return "no failure";
  }
  pid_t child = -1;
  std::string address;  // the child's
  SharedMemory shared;
};

TEST_P(DeadPeerTest, IsNotWrittenThroughTheKernel) {
  EXPECT_THAT(failure(std::nullopt, {.address = 4096, .key = 0}),
              AllOf(HasSubstr("to peer 1"), HasSubstr("has ended")));
}

TEST_P(DeadPeerTest, IsNoticedWhenItsRingIsFull) {
  // The target is memory that both processes map: such writes succeed, but nobody takes their immediates.
  EXPECT_THAT(failure(7, {.address = shared.address, .key = 0}), HasSubstr("has ended"));
}

TEST_P(DeadPeerTest, IsNamedByWhoConnectsToIt) {
  own = device->open_endpoint({.self = 0, .peers = 3, .arrivals = 64, .peer_descriptors = GetParam()});
  EXPECT_THAT(connect(address), AllOf(HasSubstr("process " + std::to_string(child)), HasSubstr("has ended"),
                                      HasSubstr("connecting to peer 1")));
}

INSTANTIATE_TEST_SUITE_P(Verbs, DeadPeerTest, testing::Values(0, 2));

}  // namespace
}  // namespace nzcl::verbs::cma
