// Tests the parts of the native verbs backend that need no device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cerrno>
#include <cmath>
#include <vector>

#include "nzcl/error.h"
#include "verbs/cm/greeting.h"
#include "verbs/ibv/constants.h"
#include "verbs/ibv/handles.h"
#include "verbs/ibv/port.h"
#include "verbs/ibv/queue_pair.h"
#include "verbs/ibv/work_request_id.h"
#include "verbs/link_speed.h"

namespace nzcl::verbs::ibv {
namespace {

using Kind = GidEntry::Kind;
using testing::EndsWith;
using testing::HasSubstr;

GidEntry entry(int index, Kind kind, bool ipv4) {
  GidEntry e{.gid = {}, .index = index, .kind = kind};
  if (ipv4) {
    e.gid.raw[10] = e.gid.raw[11] = 0xff;
    e.gid.raw[12] = 10;
  } else {
    e.gid.raw[0] = 0xfe;
    e.gid.raw[1] = 0x80;
  }
  return e;
}

TEST(ForkSafety, RegisteredMemoryIsSafeFromForksBeforeAnyDeviceIsOpened) {
  try {
    open_port({});
  } catch (const Error&) {  // this machine has no device
  }
  EXPECT_NE(ibv_is_fork_initialized(), IBV_FORK_DISABLED);
}

TEST(ChooseGid, RoceV2WithAnIpv4AddressComesFirst) {
  const std::vector<GidEntry> table{entry(0, Kind::roce_v1, false), entry(1, Kind::roce_v2, false),
                                    entry(2, Kind::roce_v1, true), entry(3, Kind::roce_v2, true),
                                    entry(4, Kind::roce_v2, true)};
  EXPECT_EQ(choose_gid(table, -1)->index, 3);
  EXPECT_EQ(choose_gid(std::span(table).first(3), -1)->index, 1);
  EXPECT_EQ(choose_gid(std::span(table).first(1), -1)->index, 0);
  EXPECT_EQ(choose_gid(table, 2)->index, 2);
  EXPECT_FALSE(choose_gid(table, 9));
  EXPECT_FALSE(choose_gid({}, -1));
}

TEST(ChooseGid, InfiniBandHasItsOwn) {
  const std::vector<GidEntry> table{entry(0, Kind::infiniband, false)};
  EXPECT_EQ(choose_gid(table, -1)->index, 0);
}

TEST(ChoosePort, TheNearestToTheNodeInTurn) {
  std::vector<Port> ports(4);
  for (int i = 0; i < 4; ++i) ports[static_cast<std::size_t>(i)].numa_node = i / 2;
  EXPECT_EQ(choose_port(ports, 1, 0), 2u);
  EXPECT_EQ(choose_port(ports, 1, 1), 3u);
  EXPECT_EQ(choose_port(ports, 1, 2), 2u);
  EXPECT_EQ(choose_port(ports, 0, 0), 0u);
  EXPECT_EQ(choose_port(ports, 7, 3), 3u) << "none is on that node";
  EXPECT_EQ(choose_port(ports, -1, 6), 2u) << "no node is known: all in turn";
}

RC_GTEST_PROP(CmGreeting, ComesBackThroughPadding, (PeerId from, PeerId to, std::uint8_t padding)) {
  cm::Greeting greeting{.from = from, .to = to};
  for (auto& byte : greeting.token) byte = *rc::gen::arbitrary<std::uint8_t>();
  std::vector<std::uint8_t> wire(greeting.bytes().begin(), greeting.bytes().end());
  wire.resize(wire.size() + padding);
  const auto read = cm::Greeting::read(wire);
  RC_ASSERT(read.has_value());
  RC_ASSERT(read->from == from && read->to == to && read->token == greeting.token);
  wire[*rc::gen::inRange<std::size_t>(0, 8)] ^= 1;  // a byte of the magic number or the version
  RC_ASSERT(!cm::Greeting::read(wire));
  wire.resize(sizeof greeting - 1);
  RC_ASSERT(!cm::Greeting::read(wire));
}

RC_GTEST_PROP(IbvWorkRequestId, ComesBack, (bool receive, std::uint32_t sequence)) {
  const WorkRequestId id{receive, *rc::gen::inRange<std::uint32_t>(0, 0x80000000u), sequence};
  RC_ASSERT(WorkRequestId::decode(id.encode()) == id);
}

TEST(IbvAckTimeout, FindsADeadPeerWithinAQuarterOfTheTimeout) {
  for (const double timeout : {1.0, 5.0, 30.0, 100.0}) {
    const double found_after = 4.096e-6 * std::pow(2, ack_timeout_for(timeout)) * (kRetries + 1);
    EXPECT_LE(found_after, timeout / 4) << timeout;
    EXPECT_GT(found_after, timeout / 16) << timeout;
  }
  EXPECT_EQ(ack_timeout_for(0.001), 12) << "no shorter than a busy software device needs";
  EXPECT_EQ(ack_timeout_for(1e6), 20);
}

TEST(IbvAddress, ComesBackAndRefusesOthers) {
  QueuePairAddress address;
  address.number = 0x123456;
  address.first_packet = 0xabcdef;
  address.gid[15] = 7;
  address.mtu = IBV_MTU_1024;
  const QueuePairAddress copy = QueuePairAddress::decode(address.encode());
  EXPECT_EQ(copy.number, address.number);
  EXPECT_EQ(copy.first_packet, address.first_packet);
  EXPECT_EQ(copy.gid[15], 7);
  EXPECT_THROW(QueuePairAddress::decode("short"), Error);
}

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// libibverbs reports failure in three ways, and each must become an Error or a checked count.
TEST(IbvErrors, ANullPointerTakesErrnoAndSaysWhatToDo) {
  const auto refused = [](int error) {
    return text_of([=] {
      errno = error;
      owned<ibv_pd>(nullptr, "thing");
    });
  };
  EXPECT_THAT(refused(ENOMEM), HasSubstr("thing: Cannot allocate memory; raise the limit on locked memory"));
  EXPECT_THAT(refused(EAGAIN), HasSubstr("rdma.max"));
  EXPECT_THAT(refused(EINVAL), EndsWith("thing: Invalid argument"));
}
TEST(IbvErrors, APositiveErrnoIsReturned) {
  EXPECT_THAT(text_of([] { check(EINVAL, "thing"); }), HasSubstr("thing: Invalid argument"));
  EXPECT_EQ(text_of([] { check(0, "thing"); }), "no error");
}
TEST(IbvErrors, ACountIsNegative) {
  EXPECT_TRUE(failed_count(-1));
  EXPECT_FALSE(failed_count(0));
}

TEST(IbvDeviceHere, WithoutOneTheErrorSaysWhatToDo) {
  try {
    open_port({});
    GTEST_SKIP() << "there is an RDMA device here";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unavailable);
    EXPECT_THAT(e.what(), testing::AnyOf(HasSubstr("scripts/softroce"), HasSubstr("ibverbs: no usable port"),
                                         HasSubstr("/dev/infiniband")));
  }
}

TEST(LinkSpeedOfAPort, FollowsFromItsSpeedAndWidth) {
  EXPECT_EQ(port_gbps(1, 1), 2);
  EXPECT_EQ(port_gbps(8, 1), 10);
  EXPECT_EQ(port_gbps(32, 2), 100) << "EDR, four lanes";
  EXPECT_EQ(port_gbps(128, 2), 400);
  EXPECT_EQ(port_gbps(32, 16), 50);
  EXPECT_EQ(port_gbps(0, 2), 0);
  EXPECT_EQ(port_gbps(32, 3), 0);
}

TEST(LinkSpeedOfAnInterface, IsWhatItsDriverSaysIfItKnows) {
  EXPECT_EQ(gbps_of_text("1000"), 1);
  EXPECT_EQ(gbps_of_text("2500"), 2.5);
  for (const char* unknown : {"", "-1", "0", "fast", "10x", "99999999999"})
    EXPECT_EQ(gbps_of_text(unknown), 0);
  EXPECT_EQ(interface_gbps("lo"), 0);
  EXPECT_EQ(interface_gbps("no such interface"), 0);
  EXPECT_EQ(interface_gbps("../../etc"), 0);
}

}  // namespace
}  // namespace nzcl::verbs::ibv
