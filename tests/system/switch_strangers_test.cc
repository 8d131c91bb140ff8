// What strangers send to the ports of the switch exchange, and what they repeat, ends nothing, and is
// counted.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "nzcl/log.h"
#include "runtime/channel/lane_context.h"
#include "runtime/switch/dropped.h"
#include "runtime/switch/kernel_pools.h"
#include "runtime/switch/port.h"
#include "runtime/switch/switch_exchange.h"

namespace nzcl::engine {
namespace {

using namespace slot_pool;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The warnings of the time in which it lives.
class Warnings {
 public:
  Warnings() {
    set_log_callback([this](LogLevel level, std::string_view line) {
      if (level == LogLevel::warn) lines_.emplace_back(line);
    });
  }
  ~Warnings() { set_log_callback({}); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

/// What sums in the kernel, as far as its exchange sees that.
class FakePools final : public KernelPools {
 public:
  std::string notice;

  std::uint32_t slots() const override { return 8; }
  std::size_t max_bytes() const override { return 1472; }
  std::string interfaces() const override { return "port0, port1"; }
  std::unique_ptr<KernelPool> open(const Pool&, const std::string&, std::span<const std::string>) override {
    class FakePool final : public KernelPool {
     public:
      explicit FakePool(const FakePools& pools) : pools_(pools) {}
      std::string failure() const override { return {}; }
      std::string notice() const override { return pools_.notice; }

     private:
      const FakePools& pools_;
    };
    return std::make_unique<FakePool>(*this);
  }
};

class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    own_.sin_family = AF_INET;
    own_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof own_;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&own_), size), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&own_), &size), 0);
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  std::string member() const {
    return PortAddress{
        .address = "127.0.0.1:" + std::to_string(ntohs(own_.sin_port)), .max_bytes = 1472, .job = {}}
        .encode();
  }
  void send(const std::string& to, std::span<const std::byte> bytes) const {
    sockaddr_in address = own_;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(to.substr(to.rfind(':') + 1))));
    EXPECT_EQ(
        ::sendto(fd_, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&address), sizeof address),
        static_cast<ssize_t>(bytes.size()));
  }

 private:
  const int fd_;
  sockaddr_in own_{};
};

EngineConfig aggregators_config() {
  EngineConfig config;
  config.members = {.self = 2, .workers = 2, .dedicated = 1};
  return config;
}

/// An aggregator that has met two ranks, whose sockets are the test's.
struct Aggregator {
  explicit Aggregator(std::shared_ptr<KernelPools> pools = nullptr) : context(aggregators_config()) {
    exchange = make_switch_exchange(context, {.port = {}, .kernel_pools = std::move(pools)});
    const std::string own = exchange->address();
    address = PortAddress::decode(own, "aggregator 0");
    const std::string all[] = {ranks[0].member(), ranks[1].member(), own};
    exchange->connect(all);
  }
  /// Sends it a packet, and lets it take that.
  void get(const Socket& from, std::span<const std::byte> packet) {
    from.send(address.address, packet);
    while (!exchange->step()) {
    }
  }
  LaneContext context;
  Socket ranks[2];
  PortAddress address;
  std::unique_ptr<Exchange> exchange;
};

std::vector<std::byte> opening(int rank, const Job& job) {
  std::vector<std::byte> packet(sizeof(Header));
  Header h;
  h.rank = static_cast<std::uint16_t>(rank);
  h.next = 0;
  seal(h, job, packet);
  return packet;
}

std::vector<std::byte> changed(std::vector<std::byte> packet) {
  packet.back() ^= std::byte{1};
  return packet;
}

TEST(SwitchStrangers, ARanksPacketPastTheInterfacesIsNoFailure) {
  Warnings warnings;
  {
    Aggregator aggregator(std::make_shared<FakePools>());
    const auto packet = opening(1, aggregator.address.job);
    for (int i = 0; i < 3; ++i) aggregator.get(aggregator.ranks[1], packet);
    aggregator.get(aggregator.ranks[1], changed(packet));
    aggregator.get(aggregator.ranks[0], packet);
    EXPECT_FALSE(aggregator.context.failure) << aggregator.context.failure->text;
    EXPECT_THAT(warnings.lines(),
                ElementsAre(HasSubstr("aggregator 0: lane 0: packets of rank 1 come in past "
                                      "the interfaces at which they are summed (port0, "
                                      "port1), and are dropped")))
        << "once, however many come";
  }
  EXPECT_THAT(
      warnings.lines(),
      Contains(HasSubstr("were dropped: 2 that were forged, or changed on the way, 3 of ranks, past")));
}

TEST(SwitchStrangers, WhatThePoolNoticesIsToldOnce) {
  Warnings warnings;
  const auto pools = std::make_shared<FakePools>();
  Aggregator aggregator(pools);
  aggregator.exchange->step();
  EXPECT_THAT(warnings.lines(), IsEmpty());
  pools->notice = "two ranks behind port0";
  for (int i = 0; i < 3; ++i) aggregator.exchange->step();
  EXPECT_THAT(warnings.lines(), ElementsAre("aggregator 0: lane 0: two ranks behind port0"));
  EXPECT_FALSE(aggregator.context.failure);
}

TEST(SwitchStrangers, AnAggregatorInAProcessSaysAtItsEndWhatItDropped) {
  Warnings warnings;
  {
    Aggregator aggregator;
    const Socket stranger;
    const auto packet = opening(1, aggregator.address.job);
    stranger.send(aggregator.address.address, packet);
    aggregator.get(aggregator.ranks[1], packet);
    aggregator.get(aggregator.ranks[1], packet);
    aggregator.get(aggregator.ranks[0], packet);
    aggregator.get(aggregator.ranks[1], changed(packet));
    EXPECT_FALSE(aggregator.context.failure) << aggregator.context.failure->text;
  }
  EXPECT_THAT(
      warnings.lines(),
      ElementsAre("aggregator 0: lane 0: packets that came to the switch exchange's port were dropped: "
                  "1 from addresses that are no member's, 2 that were forged, or changed on the way"));
}

TEST(SwitchStrangers, NothingDroppedIsNoLine) {
  Warnings warnings;
  {
    Aggregator aggregator;
    aggregator.get(aggregator.ranks[1], opening(1, aggregator.address.job));
  }
  EXPECT_THAT(warnings.lines(), IsEmpty());
  EXPECT_EQ(dropped_text({}), "");
}

}  // namespace
}  // namespace nzcl::engine
