// How gathers of the control plane end: every member gets one answer, the same as all others, whenever it
// comes.
#include "runtime/bootstrap/gather_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "runtime/bootstrap/columns.h"

namespace nzcl::bootstrap {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Kind = GatherFrame::Kind;

class GatherBoardTest : public testing::Test {
 protected:
  static GatherFrame frame(Kind kind, std::vector<int> members, const std::string& name = "g") {
    return {.kind = kind, .name = name, .members = std::move(members), .parts = {}, .failure = {}};
  }
  /// What the sender tells each of the members.
  static GatherFrame row(std::vector<int> members, const std::vector<std::string>& texts) {
    GatherFrame f = frame(Kind::row, std::move(members));
    f.parts = {Row(texts).encode()};
    return f;
  }
  static GatherFrame part(std::vector<int> members, const std::string& text, const std::string& name = "g") {
    GatherFrame f = frame(Kind::part, std::move(members), name);
    f.parts = {text};
    return f;
  }
  /// "member: part,part" or "member: error", for each answer.
  static std::vector<std::string> told(const GatherBoard::Answers& answers) {
    std::vector<std::string> lines;
    for (const auto& [member, text] : answers) {
      const GatherFrame f = parse_gather_frame(text.text(), 4);
      std::string line = std::to_string(member) + ": " + f.failure.text;
      for (const std::string& p : f.parts) line += p + ",";
      lines.push_back(line);
    }
    return lines;
  }
  std::vector<std::string> take(std::size_t from, GatherFrame f) {
    return told(board.take(from, std::move(f)));
  }
  std::string denied(std::size_t from, GatherFrame f) {
    try {
      board.take(from, std::move(f));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::denied);
      return e.what();
    }
    return "taken";
  }

  GatherBoard board{{"rank 0", "rank 1", "rank 2", "rank 3"}};
};

TEST_F(GatherBoardTest, PartsComeBackInTheOrderOfTheMembers) {
  EXPECT_THAT(take(1, part({3, 1, 0}, "b")), IsEmpty());
  EXPECT_THAT(take(0, part({3, 1, 0}, std::string("\0c", 2))), IsEmpty());
  const std::string all = ": a,b," + std::string("\0c", 2) + ",";
  EXPECT_THAT(take(3, part({3, 1, 0}, "a")), ElementsAre("3" + all, "1" + all, "0" + all));
}

TEST_F(GatherBoardTest, AGatherOfAllNeedsNoListOfThem) {
  for (const std::size_t from : {2, 0, 3}) EXPECT_THAT(take(from, part({}, std::to_string(from))), IsEmpty());
  const std::string late = "g: rank 1 did not come within the bootstrap timeout";
  EXPECT_THAT(take(0, frame(Kind::late, {})), ElementsAre("0: " + late, "2: " + late, "3: " + late));
  for (const std::size_t from : {2, 0, 3}) take(from, part({}, std::to_string(from), "h"));
  const std::string all = ": 0,1,2,3,";
  EXPECT_THAT(take(1, part({}, "1", "h")), ElementsAre("0" + all, "1" + all, "2" + all, "3" + all));
  take(0, part({}, "0", "i"));
  EXPECT_THAT(told(board.left(1)), ElementsAre("0: i: rank 1 has closed the communicator"));
  EXPECT_THAT(take(2, part({}, "2", "i")), ElementsAre("2: i: rank 1 has closed the communicator"));
}

TEST_F(GatherBoardTest, OfRowsEachIsToldItsOwnColumn) {
  EXPECT_THAT(take(3, row({1, 3, 0}, {"31", "33", "30"})), IsEmpty());
  EXPECT_THAT(take(0, row({1, 3, 0}, {"x", "x", "x"})), IsEmpty());
  EXPECT_THAT(take(1, row({1, 3, 0}, {"11", "", "10"})),
              ElementsAre("1: 11,31,x,", "3: ,33,x,", "0: 10,30,x,"));
}

TEST_F(GatherBoardTest, OfRowsNobodyIsToldWhatIsMeantForOthers) {
  take(0, row({0, 1, 2}, {"s-for-0", "s-for-1", "s-for-2"}));
  take(1, row({0, 1, 2}, {"s-for-0", "s-for-1", "s-for-2"}));
  for (const auto& [member, text] : board.take(2, row({0, 1, 2}, {"s-for-0", "s-for-1", "s-for-2"}))) {
    const std::string end = "s-for-" + std::to_string(member);
    EXPECT_THAT(parse_gather_frame(text.text(), 4).parts, ElementsAre(end, end, end));
    for (int other = 0; other < 3; ++other) {
      const bool has = text.second->find(std::to_string(other)) != std::string::npos;
      EXPECT_EQ(has, other == static_cast<int>(member)) << member << " " << other;
    }
  }
}

TEST_F(GatherBoardTest, WhatSeveralAreToldIsThereOnce) {
  take(0, row({}, {"a", "a", "b", "b"}));
  take(1, row({}, {"c", "c", "c", "c"}));
  take(2, row({}, {"d", "d", "e", "d"}));
  const auto answers = board.take(3, row({}, {"f", "f", "f", "f"}));
  ASSERT_EQ(answers.size(), 4u);
  for (const auto& answer : answers) EXPECT_EQ(answer.frame.first, answers[0].frame.first);
  EXPECT_EQ(answers[0].frame.second, answers[1].frame.second);
  EXPECT_NE(answers[1].frame.second, answers[3].frame.second);
  EXPECT_THAT(told(answers), ElementsAre("0: a,c,d,f,", "1: a,c,d,f,", "2: b,c,e,f,", "3: b,c,d,f,"));
}

TEST_F(GatherBoardTest, RowsThatDoNotSuitTheGatherAreRefused) {
  const auto refused = [&](GatherFrame f) {
    try {
      board.take(1, std::move(f));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("taken");
  };
  take(0, row({0, 1}, {"a", "b"}));
  EXPECT_THAT(refused(part({0, 1}, "x")), HasSubstr("a part where others have sent rows"));
  EXPECT_THAT(refused(row({0, 1}, {"a", "a", "a"})), HasSubstr("for too many members"));
  EXPECT_THAT(refused(row({0, 1}, {"a"})), HasSubstr("not for all members"));
  GatherFrame f = row({0, 1}, {"a", "b"});
  f.parts = {"x"};
  EXPECT_THAT(refused(f), HasSubstr("ends too early"));
  EXPECT_THAT(take(1, row({0, 1}, {"c", "d"})), ElementsAre("0: a,c,", "1: b,d,"));
}

TEST_F(GatherBoardTest, PartsThatAreTooMuchTogetherFailTheGather) {
  std::vector<int> members(4);
  std::iota(members.begin(), members.end(), 0);
  const auto most = static_cast<std::size_t>(kGatherLimit / 2);
  take(0, part(members, std::string(most, 'a')));
  take(1, part(members, std::string(most, 'b')));
  const std::string error = "g: its members have " + std::to_string(2 * most + 1) +
                            " bytes to tell each other, but at most " + std::to_string(kGatherLimit) +
                            " are allowed";
  EXPECT_THAT(take(2, part(members, "c")), ElementsAre("0: " + error, "1: " + error, "2: " + error));
  EXPECT_THAT(take(3, part(members, "d")), ElementsAre("3: " + error));
}

TEST_F(GatherBoardTest, GathersOfOtherNamesAreIndependent) {
  EXPECT_THAT(take(0, part({0, 1}, "a", "x")), IsEmpty());
  EXPECT_THAT(take(1, part({0, 1}, "d", "y")), IsEmpty());
  EXPECT_THAT(take(0, part({0, 1}, "c", "y")), ElementsAre("0: c,d,", "1: c,d,"));
  EXPECT_THAT(take(1, part({0, 1}, "b", "x")), ElementsAre("0: a,b,", "1: a,b,"));
}

TEST_F(GatherBoardTest, ALateMemberGetsTheErrorThatNamesIt) {
  take(0, part({0, 1, 2}, "a"));
  take(2, part({0, 1, 2}, "c"));
  const std::string error = "g: rank 1 did not come within the bootstrap timeout";
  EXPECT_THAT(take(2, frame(Kind::late, {0, 1, 2})), ElementsAre("0: " + error, "2: " + error));
  EXPECT_THAT(take(0, frame(Kind::late, {0, 1, 2})), IsEmpty()) << "its answer is on its way";
  EXPECT_THAT(take(1, part({0, 1, 2}, "b")), ElementsAre("1: " + error));
}

TEST_F(GatherBoardTest, AMemberThatIsLateForAFinishedGatherWaitsForItsAnswer) {
  take(0, part({0, 1}, "a"));
  take(1, part({0, 1}, "b"));
  EXPECT_THAT(take(0, frame(Kind::late, {0, 1})), IsEmpty());
}

TEST_F(GatherBoardTest, AMemberThatHasLeftFailsItNowAndLater) {
  take(0, part({0, 1, 2}, "a"));
  take(0, part({0, 2}, "a", "other"));
  EXPECT_THAT(told(board.left(1)), ElementsAre("0: g: rank 1 has closed the communicator"));
  EXPECT_THAT(take(2, part({0, 1, 2}, "c")), ElementsAre("2: g: rank 1 has closed the communicator"));
  EXPECT_THAT(take(2, part({1, 2}, "c", "new")), ElementsAre("2: new: rank 1 has closed the communicator"));
  EXPECT_THAT(take(2, part({0, 2}, "c", "other")), ElementsAre("0: a,c,", "2: a,c,"));
}

TEST_F(GatherBoardTest, GathersOfAMemberThatHasLeftAreNotKept) {
  board.left(1);
  for (std::size_t i = 0; i < 2 * kMostGathers; ++i) {
    const std::string name = "g" + std::to_string(i);
    ASSERT_THAT(take(0, part({0, 1, 2}, "a", name)),
                ElementsAre("0: " + name + ": rank 1 has closed the communicator"));
  }
}

TEST_F(GatherBoardTest, WhatTheProtocolDoesNotAllowIsDenied) {
  EXPECT_THAT(denied(0, part({1, 2}, "a")), HasSubstr("sender"));
  EXPECT_THAT(denied(0, part({0, 4}, "a")), HasSubstr("does not exist"));
  EXPECT_THAT(denied(0, part({0, -1}, "a")), HasSubstr("does not exist"));
  EXPECT_THAT(denied(0, part({0, 1, 0}, "a")), HasSubstr("a member twice"));
  EXPECT_THAT(denied(0, frame(Kind::parts, {0, 1})), HasSubstr("only the hub"));
  EXPECT_THAT(denied(0, frame(Kind::failed, {0, 1})), HasSubstr("only the hub"));
  take(0, part({0, 1}, "a"));
  EXPECT_THAT(denied(0, part({0, 1}, "a")), HasSubstr("a second part"));
  EXPECT_THAT(denied(1, part({1, 0}, "b")), HasSubstr("other members"));
  EXPECT_THAT(denied(1, frame(Kind::late, {1, 0})), HasSubstr("other members"));
}

TEST_F(GatherBoardTest, OpenGathersAreBoundedAndFinishedOnesAreForgotten) {
  const auto name = [](std::size_t i) { return "g" + std::to_string(i); };
  for (std::size_t i = 0; i < 2 * kMostGathers; ++i) {
    take(0, part({0, 1}, "a", name(i)));
    if (i % 2) {
      take(1, part({0, 1}, "b", name(i)));
    } else {
      take(0, frame(Kind::late, {0, 1}, name(i)));
      take(1, part({0, 1}, "b", name(i)));
    }
  }
  for (std::size_t i = 0; i < kMostGathers; ++i) take(0, part({0, 1}, "a", name(i)));
  EXPECT_THAT(denied(0, part({0, 1}, "a", name(kMostGathers))), HasSubstr("too many"));
  EXPECT_THAT(take(1, part({0, 1}, "b", name(0))), ElementsAre("0: a,b,", "1: a,b,"));
}

TEST(GatherFrames, ComeBack) {
  const GatherFrame part{.kind = Kind::part,
                         .name = "split 3, color 2",
                         .members = {2, 0},
                         .parts = {std::string("\0\xff\n", 3)},
                         .failure = {}};
  const GatherFrame again = parse_gather_frame(encode(part), 4);
  EXPECT_EQ(again.kind, part.kind);
  EXPECT_EQ(again.name, part.name);
  EXPECT_EQ(again.members, part.members);
  EXPECT_EQ(again.parts, part.parts);
  const GatherFrame failed{
      .kind = Kind::failed, .name = "x", .members = {}, .parts = {}, .failure = {ErrorCode::timeout, "late"}};
  EXPECT_EQ(parse_gather_frame(encode(failed), 4).failure.code, ErrorCode::timeout);
  EXPECT_EQ(parse_gather_frame(encode(failed), 4).failure.text, "late");
}

TEST(GatherFrames, WhatIsNoFrameIsRefused) {
  const auto refused = [](const std::string& text) {
    try {
      parse_gather_frame(text, 4);
    } catch (const Error& e) {
      return e.code() == ErrorCode::mismatch;
    }
    return false;
  };
  GatherFrame f{.kind = Kind::part, .name = "x", .members = {0}, .parts = {"a"}, .failure = {}};
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("{}"));
  EXPECT_TRUE(refused("G"));
  EXPECT_TRUE(refused(encode(f).substr(0, encode(f).size() - 1)));
  f.parts = {"a", "b"};
  EXPECT_TRUE(refused(encode(f))) << "two parts";
  f.parts = {};
  EXPECT_TRUE(refused(encode(f))) << "no part";
  f.parts = {"a"};
  f.name = std::string(kGatherNameLimit + 1, 'x');
  EXPECT_TRUE(refused(encode(f))) << "a long name";
  f.name = "x";
  f.members = {-1};
  EXPECT_TRUE(refused(encode(f))) << "a negative position";
}

}  // namespace
}  // namespace nzcl::bootstrap
