// What a member tells each of the others, and how many bytes a meeting of a thousand takes.
#include "runtime/bootstrap/columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "nzcl/error.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/gather_board.h"
#include "runtime/bootstrap/string_list.h"
#include "runtime/comm/join/hello.h"
#include "runtime/comm/join/lane_addresses.h"
#include "verbs/cma/address.h"

namespace nzcl::bootstrap {
namespace {

using testing::HasSubstr;
using Strings = std::vector<std::string>;

TEST(Row, ComesBack) {
  const Strings texts{"said to a", "said to b", "said to a", "said to a", "said to "};
  const Row row = Row::decode(Row(texts).encode(), texts.size());
  EXPECT_EQ(row.common(), "said to ");
  EXPECT_EQ(row.ends(), (Strings{"a", "b", ""}));
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(row.common() + row.ends()[row.end_of(i)], texts[i]);
  EXPECT_EQ(row.longest(), 9u);
}

TEST(Row, WhatAllAreToldIsThereOnce) {
  const std::string much(1000, 'x');
  EXPECT_LT(Row(Strings(1000, much)).encode().size(), 1030u);
  Strings texts;
  for (int i = 0; i < 1000; ++i) texts.push_back(much + (i % 2 ? much : ""));
  EXPECT_LT(Row(texts).encode().size(), 2030u + 2 * 1000);
}

TEST(Row, WhatSuitsNoMembersIsRefused) {
  const auto refusal = [](const std::string& text) {
    try {
      Row::decode(text, 2);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::mismatch);
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string ends = encode_similar(Strings{"a", "b"});
  EXPECT_EQ(refusal(encode_strings({"", std::string("\0\1\1\1", 4), ends})), "");
  EXPECT_THAT(refusal(encode_strings({"", std::string("\0\1", 2)})), HasSubstr("three parts"));
  EXPECT_THAT(refusal(encode_strings({"", std::string("\0\1", 2), ends})), HasSubstr("not for all members"));
  EXPECT_THAT(refusal(encode_strings({"", std::string("\0\3", 2), ends})), HasSubstr("too many members"));
  EXPECT_THAT(refusal(encode_strings({"", std::string("\0\1\2\1", 4), ends})), HasSubstr("no text for one"));
  EXPECT_THAT(refusal(encode_strings({"", std::string("\0\1\1", 3), ends})), HasSubstr("ends too early"));
  EXPECT_THAT(refusal(encode_strings({"", std::string("\0\2", 2), encode_similar(Strings(3, "a"))})),
              HasSubstr("more strings than are allowed"));
}

/// Takes all parts of one gather of the meeting to the hub, and counts the bytes that go there and come back.
class CountedMeeting {
 public:
  explicit CountedMeeting(std::size_t members) : members_(members), board_(Strings(members, "x")) {}

  /// `part` gives a member's part, as a frame of this kind.
  template <typename Part>
  void gather(GatherFrame::Kind kind, Part part) {
    GatherBoard::Answers answers;
    for (std::size_t member = 0; member < members_; ++member) {
      const std::string frame = encode(GatherFrame{.kind = kind,
                                                   .name = "meeting, round " + std::to_string(gathers_),
                                                   .members = {},
                                                   .parts = {part(member)},
                                                   .failure = {}});
      received_ += frame.size();
      answers = board_.take(member, parse_gather_frame(frame, 1));
    }
    ++gathers_;
    ASSERT_EQ(answers.size(), members_);
    for (const auto& answer : answers) sent_ += answer.frame.size();
    most_told_ = std::max(most_told_, answers.back().frame.size());
  }
  std::size_t received() const { return received_; }
  std::size_t sent() const { return sent_; }
  /// The longest frame that the last member has got.
  std::size_t most_told() const { return most_told_; }

 private:
  const std::size_t members_;
  GatherBoard board_;
  std::size_t gathers_ = 0, received_ = 0, sent_ = 0, most_told_ = 0;
};

/// The addresses that lanes have, with random numbers where these have some.
class Addresses {
 public:
  std::string cma(std::size_t member) {
    const std::uint64_t memory = random_place();
    verbs::cma::Address address;
    address.start = {.pid = static_cast<std::int32_t>(1000 + member),
                     .segment_fd = 17,
                     .event_fd = 18,
                     .entries = 8192,
                     .segment_bytes = 1 << 20,
                     .nonce = random_()};
    address.memories = {{.address = memory, .bytes = 1 << 24, .fd = 16, .reserved = 0}};
    return start(memory, 0) + address.encode();
  }
  std::string tcp(std::size_t member) {
    std::string name(16, '\0');
    const auto number = static_cast<std::uint32_t>(member / 8);
    std::memcpy(name.data() + 4, &number, sizeof number);
    const std::uint64_t port = random_();
    std::memcpy(name.data() + 2, &port, 2);
    const std::uint64_t key =
        random_();  // first, because compilers differ in which argument they compute first
    return start(random_place(), key) + "tcp;ofi_rxm" + std::string(1, '\0') + name;
  }

 private:
  std::uint64_t random_place() { return 0x7f0000000000 + (random_() >> 24 << 12); }
  std::string start(std::uint64_t address, std::uint64_t key) {
    std::string text(28, '\0');
    const std::uint64_t secret = random_();
    std::memcpy(text.data(), &address, sizeof address);
    std::memcpy(text.data() + 8, &key, sizeof key);
    std::memcpy(text.data() + 16, &secret, sizeof secret);
    return text;
  }
  std::mt19937_64 random_{7};
};

std::string hello(std::size_t member, std::size_t per_host) {
  comm::Hello h = comm::make_hello({}, comm::Role::worker, static_cast<int>(member));
  h.host_name = h.host = h.network = h.process_space = "node" + std::to_string(1000 + member / per_host);
  h.pid = static_cast<int>(20000 + member * 7 % 10000);
  return h.encode();
}

/// Lets members introduce themselves, say where they listen, and tell each other the addresses of their
/// lanes, which are those of cma within a host.
void meet(CountedMeeting& meeting, std::size_t members, std::size_t per_host) {
  meeting.gather(GatherFrame::Kind::part, [&](std::size_t member) { return hello(member, per_host); });
  meeting.gather(GatherFrame::Kind::part, [](std::size_t member) {
    return R"({"host_id":"0123456789abcdef","hosts":["10.0.0.)" + std::to_string(member / 8 % 256) +
           R"("],"port":)" + std::to_string(32768 + member * 7919 % 28000) + "}";
  });
  Addresses addresses;
  meeting.gather(GatherFrame::Kind::row, [&](std::size_t member) {  // the offers of a trial
    const std::string offer = encode_strings({"", addresses.cma(member).substr(0, 32)});
    Strings told;
    for (std::size_t peer = 0; peer < members; ++peer)
      told.push_back(peer / per_host == member / per_host ? offer : encode_strings({"", ""}));
    return Row(told).encode();
  });
  meeting.gather(GatherFrame::Kind::part, [](std::size_t) { return encode_strings({"0", ""}); });
  meeting.gather(GatherFrame::Kind::part, [](std::size_t) {
    return std::string(R"({"gbps":100,"node":0,"scan_streams":0,"source":1})");
  });
  meeting.gather(GatherFrame::Kind::row, [&](std::size_t member) {
    const std::string within = addresses.cma(member), between = addresses.tcp(member);
    Strings of_lane;
    for (std::size_t peer = 0; peer < members; ++peer)
      of_lane.push_back(peer / per_host == member / per_host ? within : between);
    comm::LaneAddresses lanes;
    lanes.add(of_lane);
    Strings told;
    for (std::size_t peer = 0; peer < members; ++peer) told.push_back(lanes.told(peer));
    return Row(told).encode();
  });
  meeting.gather(GatherFrame::Kind::part, [](std::size_t) { return std::string("ready"); });
}

TEST(MeetingBytes, OfAThousandAreLessThanSixtyFourMebibytesAtTheHub) {
  CountedMeeting meeting(1024);
  meet(meeting, 1024, 8);
  EXPECT_LT(meeting.sent() + meeting.received(), 64u << 20);
}

TEST(MeetingBytes, AreSoManyForEachOtherMemberHoweverManyThereAre) {
  std::vector<double> for_each;
  for (const std::size_t members : {std::size_t{256}, std::size_t{1024}}) {
    CountedMeeting meeting(members);
    meet(meeting, members, 8);
    for_each.push_back(double(meeting.most_told()) / double(members));
  }
  EXPECT_LT(for_each[0], 80);
  EXPECT_LT(for_each[1], 1.1 * for_each[0]);
}

}  // namespace
}  // namespace nzcl::bootstrap
