// What is told to a caller is not logged as well; what reaches nobody is, in the name of its rank, and where
// the program wants it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nzcl/log.h"
#include "nzcl/nzcl.h"
#include "tests/system/misuse.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

/// The log's lines from here to the end of the scope.
class Lines {
 public:
  Lines() {
    set_log_callback([this](LogLevel level, std::string_view text) { all.emplace_back(level, text); });
  }
  ~Lines() { set_log_callback({}); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  std::vector<std::pair<LogLevel, std::string>> all;  // one call at a time: no lock
};

Setting logging(LogLevel level, int ranks) {
  Setting s = quick(ranks);
  s.options.log_level = level;
  return s;
}

TEST(LogTest, AFailureThatCallersAreToldIsNotLoggedToo) {
  Lines lines;
  const auto errors = run_ranks(logging(LogLevel::info, 2), [](Communicator& c) {
    Buffer b(c);
    if (c.rank() == 0) c.abort("the loss is NaN");
    while (true) c.allreduce(b.request()).wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("the loss is NaN")));
  EXPECT_THAT(lines.all, Each(Pair(LogLevel::info, HasSubstr("workers"))));
}

TEST(LogTest, AFailureThatNobodyIsToldIsLoggedOnceInTheNameOfItsRank) {
  Lines lines;
  std::barrier<> both_are_past(2);
  const auto errors = run_ranks(logging(LogLevel::warn, 2), [&](Communicator& c) {
    c.barrier();
    both_are_past.arrive_and_wait();  // otherwise the failure could end the other rank's barrier
    if (c.rank() == 0) c.abort("the loss is NaN");
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(lines.all, ElementsAre(Pair(LogLevel::error,
                                          AllOf(StartsWith("rank 1: "), HasSubstr("the loss is NaN")))));
}

TEST(LogTest, WhatACallbackThrowsIsLoggedInTheNameOfItsRank) {
  Lines lines;
  const auto errors = run_ranks(logging(LogLevel::warn, 2), [](Communicator& c) {
    Work work = c.allreduce({});
    if (c.rank() == 1) work.on_complete([](const Error*) { throw std::runtime_error("no more memory"); });
    c.barrier();
    if (c.rank() == 1) work.on_complete([](const Error*) { throw 7; });
    c.barrier();
  });
  EXPECT_THAT(errors, Each(""));
  const auto is = [](const char* thrown) {
    return Pair(LogLevel::error,
                AllOf(StartsWith("rank 1: "), HasSubstr("callback of operation 0"), HasSubstr(thrown)));
  };
  EXPECT_THAT(lines.all, UnorderedElementsAre(is("no more memory"), is("no std::exception")));
}

TEST(LogTest, AtLevelDebugEveryRankNamesItself) {
  Lines lines;
  run_ranks(logging(LogLevel::debug, 2), [](Communicator& c) {
    if (c.rank() == 0) c.abort("on purpose");
    while (true) c.barrier();
  });
  for (const char* rank : {"rank 0: ", "rank 1: "}) {
    EXPECT_THAT(lines.all, Contains(Pair(LogLevel::debug, AllOf(StartsWith(rank), HasSubstr("on purpose")))));
  }
  EXPECT_THAT(lines.all, Each(Pair(::testing::_, StartsWith("rank "))));
}

TEST(LogTest, LinesOfCodeAroundTheLibraryAreAmongItsOwn) {
  Lines lines;
  run_ranks(logging(LogLevel::warn, 1), [](Communicator&) {
    write_log(LogLevel::info, "is not asked for");
    write_log(LogLevel::warn, "is {} asked for");
    write_log(LogLevel::error, "");
    write_log(LogLevel::off, "is no line");
  });
  EXPECT_THAT(lines.all, ElementsAre(Pair(LogLevel::warn, "is {} asked for"), Pair(LogLevel::error, "")));
}

TEST(LogTest, ACallbackMayThrowAndUseNzclButNotReplaceItself) {
  int refused = 0;
  set_log_callback([&](LogLevel, std::string_view) {
    try {
      set_log_callback({});
    } catch (const Error& e) {
      refused += e.code() == ErrorCode::invalid_usage;
    }
    EXPECT_EQ(error_of([] {
                Options o;
                o.timeout_s = -1;
                LocalGroup g(1);
                Communicator(g, 0, o);
              }).first,
              static_cast<int>(ErrorCode::invalid_argument));
    throw std::runtime_error("a callback's own");
  });
  const auto errors = run_ranks(logging(LogLevel::info, 2), [](Communicator& c) { c.barrier(); });
  set_log_callback({});
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(refused, 2);
}

TEST(LogTest, TheCCallbackGetsLevelTextAndContext) {
  std::vector<std::pair<nzclLogLevel_t, std::string>> lines;
  const auto add = [](nzclLogLevel_t level, const char* text, void* context) {
    static_cast<decltype(lines)*>(context)->emplace_back(level, text);
  };
  ASSERT_EQ(nzclSetLogCallback(add, &lines), nzclSuccess);
  run_ranks(logging(LogLevel::info, 1), [](Communicator&) {});
  ASSERT_EQ(nzclSetLogCallback(nullptr, nullptr), nzclSuccess);
  EXPECT_THAT(lines, ElementsAre(Pair(nzclLogInfo, StartsWith("rank 0 of 1"))));
  run_ranks(logging(LogLevel::info, 1), [](Communicator&) {});
  EXPECT_EQ(lines.size(), 1u);
}

}  // namespace
}  // namespace nzcl::test
