// Tests that every backend of verbs/datagram/datagram.h keeps its promises. A network may lose anything, so a
// test sends again until enough has come, and checks what came.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "verbs/datagram/datagram.h"
#include "verbs/datagram/simulated/network.h"

namespace nzcl::verbs::test {
namespace {

using ::testing::ElementsAre;
using Ports = std::vector<std::unique_ptr<DatagramPort>>;

struct Backend {
  std::string name;
  std::function<Ports(std::size_t)> open;
  friend std::ostream& operator<<(std::ostream& out, const Backend& backend) { return out << backend.name; }
};

Backend simulated(const std::string& name, const SimulatedLink& link) {
  return {name, [link](std::size_t count) {
            SimulatedNetwork network(7, std::chrono::microseconds(1));
            Ports ports;
            while (ports.size() < count) ports.push_back(network.open(link));
            return ports;
          }};
}

std::vector<Backend> all_backends() {
  SimulatedLink faulty, slow;
  faulty.faults = {.loss = 0.2, .duplication = 0.2, .reordering = 0.3};
  slow.bits_per_second = 1e9;
  slow.delay = std::chrono::microseconds(20);
  slow.queue_bytes = 64 << 10;
  return {{"udp",
           [](std::size_t count) {
             Ports ports;
             while (ports.size() < count) ports.push_back(open_datagram_port({}));
             return ports;
           }},
          {"ud",
           [](std::size_t count) {
             Ports ports;
             while (ports.size() < count) {
               DatagramOptions options{.kind = DatagramKind::ud};
               options.device.local_rank =
                   static_cast<int>(ports.size());  // on another device, if there is one
               ports.push_back(open_datagram_port(options));
             }
             return ports;
           }},
          simulated("loopback", {}),
          simulated("faulty", faulty),
          simulated("slow", slow)};
}

class DatagramTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (GetParam().name != "ud") return;
    try {
      open(1);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::unavailable) GTEST_SKIP() << e.what();
      throw;
    }
  }
  Ports open(std::size_t count) { return GetParam().open(count); }
  /// Makes each port know all others, under the numbers of their places.
  static void connect(Ports& ports) {
    std::vector<std::string> addresses;
    for (const auto& port : ports) addresses.push_back(port->address());
    for (std::size_t i = 0; i < ports.size(); ++i) {
      auto others = addresses;
      others[i].clear();
      ports[i]->connect(others);
    }
  }
  static std::vector<std::byte> pattern(std::size_t bytes, std::size_t seed) {
    std::vector<std::byte> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 131 + (i >> 8) + seed * 53);
    return out;
  }
  /// Calls `step` until `done`, with pauses, but at most as often as any test needs many times over.
  static bool until(const std::function<bool()>& done, const std::function<void()>& step) {
    for (int i = 0; i < 20000; ++i) {
      if (done()) return true;
      step();
      if (i % 64 == 63) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return done();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DatagramTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(DatagramTest, ArrivesWholeAndSaysFromWhom) {
  Ports ports = open(3);
  connect(ports);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{47}, std::size_t{1024}, ports[0]->max_bytes()}) {
    SCOPED_TRACE(bytes);
    for (PeerId from = 0; from < 2; ++from) {
      const auto sent = pattern(bytes, from);
      bool came = false;
      ASSERT_TRUE(until([&] { return came; },
                        [&] {
                          const Datagram d{2, sent};
                          ports[from]->send({&d, 1});
                          std::array<ArrivedDatagram, 8> out;
                          const std::size_t n = ports[2]->receive(out);
                          for (const ArrivedDatagram& a : std::span(out).first(n)) {
                            if (a.bytes.size() != bytes || a.peer != from) continue;  // of an earlier round
                            EXPECT_TRUE(std::ranges::equal(a.bytes, sent));
                            came = true;
                          }
                        }));
    }
  }
}

TEST_P(DatagramTest, BatchesGoToManyPeersAndOnlyThere) {
  Ports ports = open(4);
  connect(ports);
  std::array<std::map<unsigned, bool>, 4> came;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Datagram> batch;
  for (unsigned i = 0; i < 100; ++i) bytes.push_back({static_cast<std::byte>(i), std::byte{0}});
  for (unsigned i = 0; i < 100; ++i) batch.push_back({1 + i % 3, bytes[i]});
  ASSERT_TRUE(until([&] { return came[1].size() + came[2].size() + came[3].size() == 100; },
                    [&] {
                      std::span<const Datagram> rest = batch;
                      for (int attempt = 0; attempt < 100 && !rest.empty(); ++attempt)
                        rest = rest.subspan(ports[0]->send(rest));
                      for (PeerId to = 1; to < 4; ++to) {
                        std::array<ArrivedDatagram, 40> out;
                        const std::size_t n = ports[to]->receive(out);
                        for (const ArrivedDatagram& a : std::span(out).first(n)) {
                          ASSERT_EQ(a.bytes.size(), 2u);
                          EXPECT_EQ(a.peer, 0u);
                          const auto i = std::to_integer<unsigned>(a.bytes[0]);
                          EXPECT_EQ(1 + i % 3, to);
                          came[to][i] = true;
                        }
                      }
                    }));
}

TEST_P(DatagramTest, RunsOfOneSizeArriveAsTheyWereSent) {
  Ports ports = open(3);
  connect(ports);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{47}, std::size_t{1000}, ports[0]->max_bytes()}) {
    SCOPED_TRACE(bytes);
    // Two runs whose last datagrams are shorter, to two peers, and some of other sizes between them.
    std::vector<std::vector<std::byte>> sent;
    for (std::size_t i = 0; i < 90; ++i) {
      sent.push_back(pattern(i % 45 == 44 ? (bytes + 1) / 2 : i % 20 == 19 ? bytes / 3 + 1 : bytes, i));
      sent.back()[0] = static_cast<std::byte>(i);
    }
    std::vector<bool> came(sent.size());
    int steps = 0;
    ASSERT_TRUE(until([&] { return std::ranges::count(came, true) == 90; },
                      [&] {
                        std::vector<Datagram> batch;
                        // A slow link needs time before more would be of use.
                        for (std::size_t i = 0; i < sent.size() && steps % 256 == 0; ++i) {
                          if (!came[i]) batch.push_back({i < 45 ? PeerId{1} : PeerId{2}, sent[i]});
                        }
                        ++steps;
                        std::span<const Datagram> rest = batch;
                        for (int attempt = 0; attempt < 100 && !rest.empty(); ++attempt)
                          rest = rest.subspan(ports[0]->send(rest));
                        for (PeerId to = 1; to < 3; ++to) {
                          std::array<ArrivedDatagram, 7> out;
                          while (const std::size_t n = ports[to]->receive(out)) {
                            for (const ArrivedDatagram& a : std::span(out).first(n)) {
                              ASSERT_FALSE(a.bytes.empty());
                              const auto i = std::to_integer<std::size_t>(a.bytes[0]);
                              if (i >= sent.size() || a.bytes.size() != sent[i].size())
                                continue;  // of an earlier size
                              EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.bytes.data()) % 16, 0u);
                              EXPECT_EQ(to, i < 45 ? 1u : 2u);
                              EXPECT_TRUE(std::ranges::equal(a.bytes, sent[i])) << i;
                              came[i] = true;
                            }
                          }
                        }
                      }));
  }
}

TEST_P(DatagramTest, OneBatchIsReceivedInParts) {
  Ports ports = open(2);
  connect(ports);
  std::array<std::byte, 1> byte{std::byte{9}};
  const std::vector<Datagram> batch(20, {1, byte});
  ports[0]->send(batch);
  std::size_t came = 0;
  ASSERT_TRUE(until([&] { return came >= 5; },
                    [&] {
                      ArrivedDatagram one;
                      const std::size_t n = ports[1]->receive({&one, 1});
                      ASSERT_LE(n, 1u);
                      came += n;
                    }));
  EXPECT_EQ(ports[1]->counts().received, came);
  EXPECT_EQ(ports[0]->counts().sent, 20u);
}

TEST_P(DatagramTest, StrangersAreDroppedAndCounted) {
  Ports ports = open(3);
  ports[1]->connect(std::vector<std::string>{ports[0]->address()});
  const std::vector<std::string> receiver{ports[1]->address()};
  ports[0]->connect(receiver);
  ports[2]->connect(receiver);  // knows the port, but is not known there
  std::array<std::byte, 3> friendly{std::byte{1}}, strange{std::byte{2}};
  std::size_t came = 0;
  ASSERT_TRUE(until([&] { return came > 0 && ports[1]->counts().strange > 0; },
                    [&] {
                      const Datagram a{0, friendly}, b{0, strange};
                      ports[2]->send({&b, 1});
                      ports[0]->send({&a, 1});
                      std::array<ArrivedDatagram, 8> out;
                      const std::size_t n = ports[1]->receive(out);
                      for (const ArrivedDatagram& d : std::span(out).first(n))
                        EXPECT_EQ(d.bytes[0], std::byte{1});
                      came += n;
                    }));
}

TEST_P(DatagramTest, TooLargeOnesAndUnknownPeersAreRefusedAloneAndDelayNobody) {
  Ports ports = open(2);
  connect(ports);
  const std::vector<std::byte> large(ports[0]->max_bytes() > 60000 ? 70000 : 65000), small(8, std::byte{5});
  const std::array<Datagram, 3> batch{{{1, large}, {7, small}, {1, small}}};
  std::span<const Datagram> rest = batch;
  bool came = false, whole = false;
  ASSERT_TRUE(until([&] { return came && whole; },
                    [&] {
                      rest = rest.subspan(ports[0]->send(rest));
                      whole |= rest.empty();
                      if (rest.empty()) rest = batch;
                      std::array<ArrivedDatagram, 8> out;
                      came |= ports[1]->receive(out) > 0;
                    }));
  EXPECT_GE(ports[0]->counts().refused, 2u);
}

TEST_P(DatagramTest, ABadAddressIsRefused) {
  Ports ports = open(1);
  for (const char* bad : {"nonsense", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "99999999", "1:2:3"}) {
    try {
      ports[0]->connect(std::vector<std::string>{bad});
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::transport) << bad;
    }
  }
}

TEST_P(DatagramTest, TheDescriptorIsReadableWhileSomethingWaits) {
  Ports ports = open(2);
  connect(ports);
  const int fd = ports[1]->wait_fd();
  if (fd < 0) return;  // this backend promises none
  pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  std::array<std::byte, 1> byte{};
  const Datagram d{1, byte};
  ASSERT_EQ(ports[0]->send({&d, 1}), 1u);
  EXPECT_EQ(::poll(&p, 1, 5000), 1);
}

TEST(UdpPort, AnUnknownInterfaceIsNamedWithThoseThatExist) {
  try {
    open_datagram_port({.interface = "no-such-link"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unavailable);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("no-such-link"));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("lo (127.0.0.1)"));
  }
}

TEST(UdpPort, NeighboursToOnePeerAreHandedOverTogether) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  int segment = 0;
  socklen_t size = sizeof segment;
  const bool can = ::getsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, &size) == 0;
  ::close(fd);
  if (!can) GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
  const auto a = open_datagram_port({}), b = open_datagram_port({});
  a->connect(std::vector<std::string>{b->address()});
  b->connect(std::vector<std::string>{a->address()});
  const std::vector<std::byte> bytes(1000), shorter(100);
  std::vector<Datagram> batch(40, {0, bytes});
  batch[9].bytes = shorter;
  ASSERT_EQ(a->send(batch), 40u);
  EXPECT_EQ(a->counts().joined, 38u);
  a->send_apart();
  ASSERT_EQ(a->send(batch), 40u);
  EXPECT_EQ(a->counts().joined, 38u);
}

// --- What only the simulated network promises.

TEST(SimulatedNetwork, TakesTheTimeOfItsRateAndDelay) {
  SimulatedNetwork network(1);
  SimulatedLink link;
  link.bits_per_second = 8e9;
  link.delay = std::chrono::microseconds(10);
  link.header_bytes = 0;
  const auto a = network.open(link), b = network.open(link);
  a->connect(std::vector<std::string>{b->address()});
  b->connect(std::vector<std::string>{a->address()});
  const std::vector<std::byte> bytes(1000);
  const std::vector<Datagram> batch(3, {0, bytes});
  a->send(batch);
  // Each byte takes 1 ns on either link; both links have 10 us of delay.
  std::vector<std::int64_t> times;
  while (const auto next = network.next()) {
    network.advance(*next);
    std::array<ArrivedDatagram, 4> out;
    for (std::size_t n = b->receive(out); n > 0; --n) times.push_back(network.now().count());
  }
  EXPECT_THAT(times, ElementsAre(22000, 23000, 24000));
}

TEST(SimulatedNetwork, AFullQueueLosesWhatComesLast) {
  SimulatedNetwork network(1);
  SimulatedLink link;
  link.bits_per_second = 1e9;
  link.queue_bytes = 2500;
  link.header_bytes = 0;
  const auto a = network.open(link), b = network.open({});
  a->connect(std::vector<std::string>{b->address()});
  b->connect(std::vector<std::string>{a->address()});
  const std::vector<std::byte> bytes(1000);
  const std::vector<Datagram> batch(5, {0, bytes});
  a->send(batch);
  EXPECT_EQ(network.lost(), 3u);
}

TEST(SimulatedNetwork, FaultsAreThoseOfTheSeed) {
  const auto run = [](std::uint64_t seed) {
    SimulatedNetwork network(seed);
    SimulatedLink link;
    link.faults = {.loss = 0.3, .duplication = 0.1, .reordering = 0.3, .corruption = 0.1};
    const auto a = network.open(link), b = network.open({});
    a->connect(std::vector<std::string>{b->address()});
    b->connect(std::vector<std::string>{a->address()});
    for (unsigned i = 0; i < 200; ++i) {
      const std::array<std::byte, 2> bytes{static_cast<std::byte>(i), std::byte{0}};
      const Datagram d{0, bytes};
      a->send({&d, 1});
    }
    network.advance(std::chrono::seconds(1));
    std::string all;
    std::array<ArrivedDatagram, 16> out;
    while (const std::size_t n = b->receive(out)) {
      for (const ArrivedDatagram& d : std::span(out).first(n)) {
        for (const std::byte value : d.bytes) all += std::to_string(std::to_integer<int>(value)) + " ";
      }
    }
    return all;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

}  // namespace
}  // namespace nzcl::verbs::test
