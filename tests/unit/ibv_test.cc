// Tests the parts of the native verbs backend that need no device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "nzcl/error.h"
#include "verbs/cm/greeting.h"
#include "verbs/ibv/address.h"
#include "verbs/ibv/constants.h"
#include "verbs/ibv/handles.h"
#include "verbs/ibv/handshake.h"
#include "verbs/ibv/held_requests.h"
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
  EndpointAddress address;
  address.calls = 0x123456;
  address.token = 9;
  address.gid[15] = 7;
  address.mtu = IBV_MTU_1024;
  const EndpointAddress copy = EndpointAddress::decode(address.encode());
  EXPECT_EQ(copy.calls, address.calls);
  EXPECT_EQ(copy.gid[15], 7);
  EXPECT_EQ(copy.token, 9u);
  address.token = ~std::uint64_t{0};
  EXPECT_EQ(address.key(), 0x7fffffffu);
  EXPECT_THROW(EndpointAddress::decode("short"), Error);
}

/// Two sides of a handshake, between which words are lost, doubled and out of order.
class TwoSides {
 public:
  Handshake& operator[](std::size_t side) { return sides_[side]; }
  void call(std::size_t side) {
    if (!sides_[side].open()) under_way_.push_back({side, sides_[side].call()});
  }
  std::size_t under_way() const { return under_way_.size(); }
  /// The other side hears one of the words, which then is gone or comes once more.
  void deliver(std::size_t which, bool again) {
    const auto [from, word] = under_way_[which];
    if (!again) under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));
    const std::size_t to = 1 - from;
    const auto step = sides_[to].hear(word, number(from));
    if (step.connect) {
      RC_ASSERT(sides_[to].theirs() == number(from));
      ++connected_[to];
    }
    if (step.say) under_way_.push_back({to, *step.say});
  }
  void lose(std::size_t which) { under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which)); }
  void check() const {
    for (std::size_t side = 0; side < 2; ++side) {
      RC_ASSERT(connected_[side] == (sides_[side].state() >= Handshake::State::connected ? 1 : 0));
      RC_ASSERT(!sides_[side].open() || connected_[1 - side] == 1);
    }
  }

 private:
  static std::uint32_t number(std::size_t side) { return 17 + static_cast<std::uint32_t>(side); }
  struct Spoken {
    std::size_t from;
    Word word;
  };
  std::array<Handshake, 2> sides_;
  std::array<int, 2> connected_{};
  std::vector<Spoken> under_way_;
};

RC_GTEST_PROP(IbvHandshake, OpensWhereSomethingIsToBeWritten, (bool first, bool second)) {
  TwoSides sides;
  const std::array wants{first, second};
  for (int i = *rc::gen::inRange(0, 40); i > 0; --i) {
    const std::size_t side = *rc::gen::inRange<std::size_t>(0, 2);
    if (wants[side] && *rc::gen::arbitrary<bool>()) sides.call(side);
    if (sides.under_way() == 0) continue;
    const std::size_t which = *rc::gen::inRange<std::size_t>(0, sides.under_way());
    if (*rc::gen::inRange(0, 3) == 0) {
      sides.lose(which);
    } else {
      sides.deliver(which, *rc::gen::inRange(0, 4) == 0);
    }
    sides.check();
  }
  // Nothing is lost any more, and who wants to write goes on calling.
  for (int round = 0; round < 3; ++round) {
    for (std::size_t side = 0; side < 2; ++side) {
      if (wants[side]) sides.call(side);
    }
    while (sides.under_way() > 0) sides.deliver(0, false);
    sides.check();
  }
  for (std::size_t side = 0; side < 2; ++side) RC_ASSERT(!wants[side] || sides[side].open());
}

TEST(IbvHandshake, KeepsToTheNumberThatItHasHeardFirst) {
  Handshake side;
  EXPECT_FALSE(side.hear(Word::answer, 5).connect) << "it has told nobody a number";
  EXPECT_FALSE(side.hear(Word::confirm, 5).say);
  EXPECT_EQ(side.state(), Handshake::State::closed);
  EXPECT_TRUE(side.hear(Word::call, 6).connect);
  EXPECT_FALSE(side.hear(Word::call, 7).say);
  EXPECT_FALSE(side.hear(Word::confirm, 7).say);
  EXPECT_EQ(side.state(), Handshake::State::connected);
  EXPECT_EQ(side.theirs(), 6u);
  side.hear(Word::confirm, 6);
  EXPECT_TRUE(side.open());
}

TEST(IbvCallMessage, ComesBackAndRefusesOthers) {
  const auto read = [](const std::function<void(CallMessage&)>& change) {
    CallMessage message{
        .from = 3, .to = 4, .word = Word::confirm, .queue_pair = 0xffffff, .first_packet = 0xabcdef};
    change(message);
    return CallMessage::read(std::as_bytes(std::span(&message, 1)));
  };
  const auto copy = read([](CallMessage& m) { m.token = 9; });
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->from, 3u);
  EXPECT_EQ(copy->to, 4u);
  EXPECT_EQ(copy->word, Word::confirm);
  EXPECT_EQ(copy->queue_pair, 0xffffffu);
  EXPECT_EQ(copy->first_packet, 0xabcdefu);
  EXPECT_EQ(copy->token, 9u);
  EXPECT_FALSE(read([](CallMessage& m) { m.magic ^= 1; }));
  EXPECT_FALSE(read([](CallMessage& m) { m.word = Word(); }));
  EXPECT_FALSE(read([](CallMessage& m) { m.word = static_cast<Word>(4); }));
  EXPECT_FALSE(read([](CallMessage& m) { m.queue_pair = 1 << 24; }));
  EXPECT_FALSE(read([](CallMessage& m) { m.first_packet = 1 << 24; }));
  const CallMessage message;
  EXPECT_FALSE(CallMessage::read(std::as_bytes(std::span(&message, 1)).first(sizeof message - 1)));
}

TEST(IbvHeldRequests, AListIsHeldUntilItIsGivenBack) {
  HeldRequests held(2);
  for (int turn = 0; turn < 3; ++turn) {
    ibv_sge *first = nullptr, *second = nullptr;
    ibv_send_wr& a = held.hold(first);
    ibv_send_wr& b = held.hold(second);
    EXPECT_NE(&a, &b);
    EXPECT_NE(first, second);
    a.next = &b;
    b.next = nullptr;
    held.release(&a);
  }
  held.release(nullptr);
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
