// Tests of what is chosen of libfabric: providers, interfaces, addresses and keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "verbs/transport.h"

namespace nzcl::verbs {
namespace {

std::shared_ptr<Device> open_over(const std::string& transport, const std::string& interface = "") {
  DeviceOptions options;
  options.transport = transport;
  options.interface = interface;
  options.one_host = true;
  return open_device(options);
}

TEST(Ofi, PeersWithAnotherProviderAreNamed) {
  const auto best = open_over("tcp");
  const auto layered = open_over("tcp;ofi_rxm");
  if (best->name() == layered->name()) GTEST_SKIP() << "this libfabric has one provider over TCP";
  const auto mine = best->open_endpoint({.self = 0, .peers = 2, .arrivals = 8});
  const auto theirs = layered->open_endpoint({.self = 1, .peers = 2, .arrivals = 8});
  const std::array<std::string, 2> addresses{"", theirs->address_for(0)};
  try {
    mine->connect(addresses, Clock::now());
    FAIL() << "they can't reach each other";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::mismatch);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("peer 1 uses libfabric's provider tcp;ofi_rxm"));
  }
}

TEST(Ofi, AnAddressWithoutAnAddressIsRefused) {
  const auto device = open_over("tcp");
  const auto endpoint = device->open_endpoint({.self = 0, .peers = 2, .arrivals = 8});
  std::string address = endpoint->address_for(1);
  address.resize(address.find('\0'));
  for (const std::string& text : {address, address + '\0'}) {
    const std::array<std::string, 2> addresses{"", text};
    EXPECT_THROW(endpoint->connect(addresses, Clock::now()), Error);
  }
}

TEST(Ofi, TheInterfaceThatIsAskedForIsTaken) {
  for (const char* transport : {"tcp", "tcp;ofi_rxm"}) {
    EXPECT_THAT(open_over(transport, "lo")->name(), ::testing::HasSubstr("(lo)"));
    EXPECT_THAT(open_over(transport, "127.0.0.1")->name(), ::testing::HasSubstr("(lo, 127.0.0.1)"));
    for (const std::string missing : {"no_such0", "lo.100"}) {
      try {
        open_over(transport, missing);
        FAIL() << transport << " took another interface";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::unavailable);
        EXPECT_THAT(e.what(), ::testing::ContainsRegex("no interface " + missing + ", but there are .*lo"));
      }
    }
  }
}

/// The IPv4 address at which an endpoint of the device listens.
std::string listens_at(Device& device) {
  const auto endpoint = device.open_endpoint({.self = 0, .peers = 2, .arrivals = 8});
  const std::string address = endpoint->address_for(1);
  sockaddr_in at{};
  address.copy(reinterpret_cast<char*>(&at), sizeof at, address.find('\0') + 1);
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &at.sin_addr, text.data(), text.size());
  return text.data();
}

TEST(Ofi, TcpListensInTheNarrowestNetworkThatReachesAllMembers) {
  DeviceOptions options;
  options.transport = "tcp";
  options.loopback_reaches_all = true;
  EXPECT_EQ(listens_at(*open_device(options)), "127.0.0.1") << "all members are on this host";
  options.met_at = "203.0.113.1";
  EXPECT_EQ(listens_at(*open_device(options)), "127.0.0.1") << "however they have met";
  options.loopback_reaches_all = false;
  options.met_at = "127.0.0.2";  // an address that is not what libfabric would choose
  EXPECT_EQ(listens_at(*open_device(options)), "127.0.0.2") << "where they have met";
  options.interface = "127.0.0.3";
  EXPECT_EQ(listens_at(*open_device(options)), "127.0.0.3") << "as the user says";
}

TEST(Ofi, KeysCannotBeGuessed) {
  for (const char* transport : {"tcp", "tcp;ofi_rxm", "libfabric-shm"}) {
    std::array<std::byte, 64> memory{};
    std::set<std::uint64_t> keys;
    for (int i = 0; i < 8; ++i) {
      const auto device = open_over(transport);
      const auto one = device->register_memory(memory, MemoryKind::host);
      const auto two = device->register_memory(memory, MemoryKind::host);
      EXPECT_NE(one->remote().key, two->remote().key);
      keys.insert(one->remote().key);
    }
    ASSERT_EQ(keys.size(), 8u) << transport << ": devices have keys of their own";
    EXPECT_GT(*keys.begin(), std::uint64_t{1} << 32) << transport << ": a random number is seldom so small";
    EXPECT_GT(*keys.rbegin() - *keys.begin(), std::uint64_t{1} << 56) << transport << ": nor are they close";
  }
}

TEST(Ofi, AnAddressOfAnotherHostIsNamed) {
  try {
    open_over("tcp", "203.0.113.1")->open_endpoint({.self = 0, .peers = 2, .arrivals = 8});
    FAIL() << "203.0.113.1 is for documentation";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("203.0.113.1"));
  }
}

TEST(Ofi, SharedMemoryHasNoInterface) {
  EXPECT_EQ(open_over("libfabric-shm", "no_such0")->name(), open_over("libfabric-shm")->name());
}

}  // namespace
}  // namespace nzcl::verbs
