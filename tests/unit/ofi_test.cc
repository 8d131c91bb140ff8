// Tests how members with different providers of libfabric notice it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

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

TEST(Ofi, AnAddressOfAnotherHostIsNamed) {
  try {
    open_over("tcp", "203.0.113.1")->open_endpoint({.self = 0, .peers = 2, .arrivals = 8});
    FAIL() << "203.0.113.1 is for documentation";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("203.0.113.1"));
  }
}

TEST(Ofi, SharedMemoryHasNoInterface) {
  EXPECT_EQ(open_over("shm", "no_such0")->name(), open_over("shm")->name());
}

}  // namespace
}  // namespace nzcl::verbs
