// Which operations begin once more when a dedicated aggregator is lost.
#include "runtime/comm/communicator/reassignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nzcl/error.h"

namespace nzcl::comm {
namespace {

using testing::HasSubstr;
using testing::Optional;
using State = OperationsInFlight::State;

OperationsInFlight rank(std::uint64_t first, std::vector<State> states) { return {first, std::move(states)}; }

TEST(Reassignment, WhatAllRanksHaveInputsForBeginsOnceMore) {
  const Reassignment r({rank(7, {State::whole, State::whole}), rank(7, {State::whole, State::whole})});
  EXPECT_EQ(r.end(), 9u);
  EXPECT_EQ(r.why_not(7), std::nullopt);
  EXPECT_EQ(r.why_not(8), std::nullopt);
}

TEST(Reassignment, WhatARankHasEndedDoesNot) {
  // Rank 1 has ended operation 7 and forgotten it, and operation 9 before operation 8.
  const Reassignment r(
      {rank(7, {State::whole, State::whole, State::whole}), rank(8, {State::whole, State::ended})});
  EXPECT_THAT(r.why_not(7), Optional(HasSubstr("rank 1 has ended it")));
  EXPECT_EQ(r.why_not(8), std::nullopt);
  EXPECT_THAT(r.why_not(9), Optional(HasSubstr("rank 1 has ended it")));
}

TEST(Reassignment, WhatASingleRankHasSpoiledOrNotKeptDoesNot) {
  const Reassignment r({rank(0, {State::whole, State::whole}), rank(0, {State::spoiled, State::unkept})});
  EXPECT_THAT(r.why_not(0), Optional(HasSubstr("rank 1 sums in place")));
  EXPECT_THAT(r.why_not(1), Optional(HasSubstr("rank 1 cannot")));
}

TEST(Reassignment, NothingIsSpoiledBeforeAllHaveBegun) {
  const Reassignment r({rank(3, {State::spoiled, State::spoiled}), rank(3, {State::spoiled})});
  EXPECT_THAT(r.why_not(3), Optional(HasSubstr("rank 0 sums in place")));
  EXPECT_EQ(r.why_not(4), std::nullopt);
  EXPECT_EQ(r.end(), 5u);
}

TEST(Reassignment, WhatARankHasEndedBeforeAnotherHasBegunDoesNot) {
  const Reassignment r({rank(3, {State::ended, State::whole}), rank(3, {})});
  EXPECT_THAT(r.why_not(3), Optional(HasSubstr("rank 0 has ended it")));
  EXPECT_EQ(r.why_not(4), std::nullopt);
}

TEST(Reassignment, IsToldAsText) {
  const auto told = rank(1234567890123, {State::ended, State::whole, State::spoiled, State::unkept});
  EXPECT_EQ(told.encode(), "1234567890123 ewsu");
  const auto heard = OperationsInFlight::decode(told.encode(), "rank 1");
  EXPECT_EQ(heard.first, told.first);
  EXPECT_EQ(heard.states, told.states);
  EXPECT_EQ(OperationsInFlight::decode("0 ", "rank 1").end(), 0u);
}

TEST(Reassignment, RefusesWhatIsNoSuchText) {
  const std::string many(65, 'w');
  for (const std::string& text :
       {std::string(), std::string(" "), std::string("7"), std::string("7e"), std::string("7 x"),
        std::string("-7 e"), "7 " + many, std::string("18446744073709551615 e"),
        std::string("99999999999999999999 ")}) {
    try {
      (void)OperationsInFlight::decode(text, "rank 3");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::mismatch);
      EXPECT_THAT(e.what(), HasSubstr("rank 3"));
    }
  }
}

}  // namespace
}  // namespace nzcl::comm
