// What a member tells each of the others, and how many bytes a meeting of a thousand takes.
#include "runtime/bootstrap/columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "nzcl/error.h"
#include "perf/meeting/said.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/gather_board.h"
#include "runtime/bootstrap/string_list.h"

namespace nzcl::bootstrap {
namespace {

using perf::meeting::Between;
using perf::meeting::Job;
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

/// Lets members introduce themselves, say where they are, try each other within hosts, and tell each other
/// the addresses of their lanes.
void meet(CountedMeeting& meeting, const Job& job) {
  using Kind = GatherFrame::Kind;
  meeting.gather(Kind::part, [&](std::size_t member) { return perf::meeting::hello(job, member); });
  const auto port = [&](std::size_t member) {
    return R"({"host_id":"0123456789abcdef","hosts":["10.0.0.)" +
           std::to_string(member / job.per_host % 256) + R"("],"port":)" +
           std::to_string(32768 + member * 7919 % 28000) + "}";
  };
  meeting.gather(Kind::row, [&](std::size_t member) {
    return Row(perf::meeting::offers(job, member, port(member))).encode();
  });
  meeting.gather(Kind::part, [](std::size_t) { return encode_strings({"0", ""}); });
  meeting.gather(Kind::row, [&](std::size_t member) {
    return Row(perf::meeting::lane_addresses(job, member)).encode();
  });
  meeting.gather(Kind::part, [](std::size_t) { return std::string("ready"); });
}

class MeetingBytesTest : public testing::TestWithParam<Job> {};

TEST_P(MeetingBytesTest, OfAThousandAreLessThanSixtyFourMebibytesAtTheHubWithOneLane) {
  Job job = GetParam();
  job.members = 1024;
  CountedMeeting meeting(job.members);
  meet(meeting, job);
  EXPECT_LT(meeting.sent() + meeting.received(), (64 + (job.lanes - 1) * 25) << 20);
}

TEST_P(MeetingBytesTest, AreSoManyForEachOtherMemberHoweverManyThereAre) {
  Job job = GetParam();
  std::vector<double> for_each;
  for (job.members = 256; job.members <= 1024; job.members *= 4) {
    CountedMeeting meeting(job.members);
    meet(meeting, job);
    for_each.push_back(double(meeting.most_told()) / double(job.members));
  }
  EXPECT_LT(for_each[0], 80 + 25 * double(job.lanes - 1));
  EXPECT_LT(for_each[1], 1.1 * for_each[0]);
}

TEST_P(MeetingBytesTest, OfTenThousandMeetNoLimit) {
  Job job = GetParam();
  job.members = 10000;
  const Row row(perf::meeting::lane_addresses(job, 7));
  EXPECT_LT(row.encode().size(), kPartLimit);
  EXPECT_LT(row.longest() * job.members, kGatherLimit);
  EXPECT_LT(perf::meeting::hello(job, 7).size() * job.members, kGatherLimit);
}

INSTANTIATE_TEST_SUITE_P(Bootstrap, MeetingBytesTest,
                         testing::Values(Job{.lanes = 1, .between = Between::tcp},
                                         Job{.lanes = 4, .between = Between::tcp},
                                         Job{.lanes = 1, .between = Between::ibverbs}));

}  // namespace
}  // namespace nzcl::bootstrap
