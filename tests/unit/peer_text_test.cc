// Texts that members send each other before the engine runs: frames of the control plane, introductions and
// addresses. Impossible ones are refused by an Error that says what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "nzcl/error.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/string_list.h"
#include "runtime/comm/join/hello.h"
#include "runtime/comm/join/lane_addresses.h"
#include "verbs/cma/address.h"
#include "verbs/ibv/address.h"
#include "verbs/segment/shared_segment.h"
#include "verbs/shm/address.h"
#include "verbs/shm/bounce_ring.h"

namespace nzcl::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::function<void()>& parse) {
  try {
    parse();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(PeerText, AControlPlaneHasAHostAndAPort) {
  const auto parse = [](const char* text) { return refusal([&] { bootstrap::parse_hub_address(text); }); };
  EXPECT_EQ(parse(R"({"hosts":["h"],"host_id":"x","port":4711})"), "");
  EXPECT_THAT(parse(R"({"hosts":[],"host_id":"x","port":4711})"), HasSubstr("names no host"));
  EXPECT_THAT(parse(R"({"hosts":["h"],"host_id":"x","port":65536})"), HasSubstr("port is not in"));
  EXPECT_THAT(parse("{}"), HasSubstr("the address of a control plane"));
  EXPECT_THAT(parse(""), HasSubstr("does not understand"));
}

TEST(PeerText, FailuresHaveACodeThatExists) {
  const auto parse = [](const char* text) { return refusal([&] { bootstrap::parse_control_frame(text); }); };
  EXPECT_EQ(parse(R"({"type":"failed","code":6,"text":"late"})"), "");
  EXPECT_EQ(parse(R"({"type":"quiet"})"), "");
  for (const char* code : {"0", "13", "-1", "1.5", "1e300", "18446744073709551615"}) {
    const std::string frame = std::string(R"({"type":"failed","text":"","code":)") + code + "}";
    EXPECT_THAT(parse(frame.c_str()), HasSubstr("code is not in 1..12")) << code;
  }
  EXPECT_THAT(refusal([] { static_cast<void>(bootstrap::parse_error("{}")); }), HasSubstr("an error"));
}

TEST(PeerText, AGoodbyeCountsOperations) {
  const auto parse = [](const char* text) { return refusal([&] { bootstrap::parse_control_frame(text); }); };
  EXPECT_EQ(parse(R"({"type":"bye","operations":0})"), "");
  EXPECT_EQ(parse(R"({"type":"finish","operations":9223372036854775807})"), "");
  EXPECT_THAT(parse(R"({"type":"bye"})"), HasSubstr("operations"));
  for (const char* type : {"bye", "left", "wants", "finish", "finished"}) {
    for (const char* count : {"-1", "1.5", "\"1\"", "18446744073709551615"}) {
      const std::string frame = std::string(R"({"type":")") + type + R"(","operations":)" + count + "}";
      EXPECT_THAT(parse(frame.c_str()), HasSubstr("operations is not in")) << frame;
    }
  }
}

TEST(PeerText, MembersOfAMeetingAreNumbers) {
  const auto parse = [](const std::string& index) {
    const std::string hello = R"({"version":3,"session":"s","who":"x","size":3,"index":)" + index + "}";
    return refusal([&] { bootstrap::parse_member_hello(hello); });
  };
  EXPECT_EQ(parse("3"), "");
  EXPECT_THAT(parse("1e300"), HasSubstr("index is not in"));
  EXPECT_THAT(parse("\"3\""), HasSubstr("index is not in"));
}

TEST(PeerText, AHubOfAnotherVersionIsNamed) {
  const auto answer = [](const std::string& text) {
    return refusal([&] { bootstrap::parse_hub_answer(text, "rank 0"); });
  };
  EXPECT_EQ(answer(bootstrap::encode_welcome()), "");
  const std::string here = ", and this one in " + std::to_string(bootstrap::kMeetingVersion);
  EXPECT_THAT(answer("W"), HasSubstr("rank 0 meets in version 1" + here));
  EXPECT_THAT(answer("W2"), HasSubstr("rank 0 meets in version 2" + here));
  EXPECT_THAT(answer("W99"), HasSubstr("rank 0 meets in version 99" + here));
  for (const char* other : {"W3x", "W0", "W1234567", "X"})
    EXPECT_THAT(answer(other), HasSubstr("rank 0 sent an answer")) << other;
  EXPECT_EQ(bootstrap::parse_hub_answer(bootstrap::encode_retry("a"), "rank 0"),
            "session \"a\" meets here now");
  EXPECT_EQ(answer(bootstrap::encode_refusal(Error(ErrorCode::mismatch, "no"))), "no");
}

TEST(PeerText, IntroductionsWithImpossibleNumbersAreRefused) {
  const auto with = [](const std::function<void(comm::Hello&)>& change) {
    comm::Hello hello = comm::make_hello({}, comm::Role::aggregator, 1);
    change(hello);
    return refusal([&] { comm::Hello::decode(hello.encode()); });
  };
  EXPECT_EQ(with([](comm::Hello&) {}), "");
  for (const int index : {-2, 4096, 2147483647})
    EXPECT_THAT(with([&](comm::Hello& h) { h.index = index; }), HasSubstr("impossible numbers"));
  EXPECT_THAT(with([](comm::Hello& h) { h.lanes = -1; }), HasSubstr("impossible numbers"));
  EXPECT_THAT(with([](comm::Hello& h) { h.cores = 0; }), HasSubstr("impossible numbers"));
}

TEST(PeerText, EveryLaneHasAnAddress) {
  const auto parse = [](const std::vector<std::string>& strings) {
    const std::string text = bootstrap::encode_strings(strings);
    return refusal([&] { comm::LaneAddresses::decode(text, 2, "rank 1 (pid 17 on host x)"); });
  };
  EXPECT_EQ(parse({"a", "b", "", "d"}), "");
  for (const std::size_t count : {0, 2, 3, 6}) {
    EXPECT_THAT(parse(std::vector<std::string>(count)),
                HasSubstr("rank 1 (pid 17 on host x) gave addresses of " + std::to_string(count / 2) +
                          " lane(s) in " + std::to_string(count) + " strings, but 2 are used"));
  }
  EXPECT_THAT(refusal([] { comm::LaneAddresses::decode("abc", 1, "rank 0"); }),
              AllOf(HasSubstr("rank 0: the addresses of its lanes"), HasSubstr("ends too early")));
}

TEST(PeerText, AddressesOfLanesSurviveTheWay) {
  const std::vector<std::vector<std::string>> lanes{{"xa", "xbc", "x"}, {"ya", "yb", "y"}, {"s", "s", "s"}};
  comm::LaneAddresses own;
  for (const auto& addresses : lanes) own.add(addresses);
  for (std::size_t member = 0; member < 3; ++member) {
    const auto read = comm::LaneAddresses::decode(own.told(member), 3, "rank 0");
    for (std::size_t lane = 0; lane < 3; ++lane) EXPECT_EQ(read[lane], lanes[lane][member]);
  }
}

TEST(PeerText, AddressesOfCmaHaveRingsThatFillTheirMemory) {
  const auto with = [](const std::function<void(verbs::cma::Address&)>& change) {
    verbs::cma::Address address;
    address.start = {.pid = 1, .segment_fd = 3, .event_fd = 4, .entries = 64, .segment_bytes = 0};
    address.start.segment_bytes = verbs::segment::SharedSegment::Layout{.peers = 2, .entries = 64}.bytes();
    address.memories = {{.address = 4096, .bytes = 4096, .fd = 5}};
    change(address);
    return refusal([&] { verbs::cma::Address::decode(address.encode(), 2); });
  };
  EXPECT_EQ(with([](verbs::cma::Address&) {}), "");
  for (const std::uint32_t entries : {0u, 63u, 32u, 16384u})
    EXPECT_THAT(with([&](verbs::cma::Address& a) { a.start.entries = entries; }),
                HasSubstr("the size of its rings is out of range"));
  EXPECT_THAT(with([](verbs::cma::Address& a) { --a.start.segment_bytes; }),
              HasSubstr("does not match its rings"));
  EXPECT_THAT(with([](verbs::cma::Address& a) { a.memories[0].bytes = ~std::uint64_t{0}; }),
              HasSubstr("beyond the largest address"));
}

TEST(PeerText, AddressesOfShmHaveRingsThatFillTheirMemory) {
  const auto with = [](const std::function<void(verbs::shm::Address&)>& change) {
    verbs::shm::Address address;
    address.start.entries = 64;
    address.start.segment_bytes =
        verbs::segment::SharedSegment::Layout{.peers = 2, .entries = 64, .bounce = verbs::shm::kBounceArea}
            .bytes();
    address.memories = {{.address = 4096, .bytes = 4096}};
    change(address);
    return refusal([&] { verbs::shm::Address::decode(address.encode(), 2); });
  };
  EXPECT_EQ(with([](verbs::shm::Address&) {}), "");
  EXPECT_THAT(with([](verbs::shm::Address& a) { a.start.entries = 16384; }),
              HasSubstr("the size of its rings is out of range"));
  EXPECT_THAT(with([](verbs::shm::Address& a) { ++a.start.segment_bytes; }),
              HasSubstr("does not match its rings"));
  EXPECT_THAT(with([](verbs::shm::Address& a) { a.memories[0].bytes = ~std::uint64_t{0}; }),
              HasSubstr("beyond the largest address"));
}

TEST(PeerText, AddressesOfVerbsEndpointsStayWithinTheirFields) {
  const auto with = [](const std::function<void(verbs::ibv::EndpointAddress&)>& change) {
    verbs::ibv::EndpointAddress address{.calls = 17, .mtu = 3};
    change(address);
    return refusal([&] { verbs::ibv::EndpointAddress::decode(address.encode()); });
  };
  EXPECT_EQ(with([](verbs::ibv::EndpointAddress&) {}), "");
  const auto out_of_range = HasSubstr("has a value out of range");
  EXPECT_THAT(with([](verbs::ibv::EndpointAddress& a) { a.mtu = 200; }), out_of_range);
  EXPECT_THAT(with([](verbs::ibv::EndpointAddress& a) { a.mtu = 0; }), out_of_range);
  EXPECT_THAT(with([](verbs::ibv::EndpointAddress& a) { a.ethernet = 2; }), out_of_range);
  EXPECT_THAT(with([](verbs::ibv::EndpointAddress& a) { a.calls = 1 << 24; }), out_of_range);
  EXPECT_THAT(with([](verbs::ibv::EndpointAddress& a) { a.calls = 0; }), out_of_range);
}

}  // namespace
}  // namespace nzcl::test
