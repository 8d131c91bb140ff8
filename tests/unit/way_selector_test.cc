#include "runtime/torch/way_selector.h"

#include <gtest/gtest.h>

namespace nzcl_torch {
namespace {

/// Steps that take as long as the way says, until a way must be chosen. Returns how many there were.
int try_both(WaySelector& selector, double dense, double compressed) {
  int steps = 0;
  for (; !selector.must_choose(); ++steps)
    selector.took((selector.next() == Way::dense ? dense : compressed) + (steps < 2 ? 100 : 0));
  return steps;
}

TEST(WaySelector, TriesEachWayInTurnAndForgetsTheFirstOfEach) {
  WaySelector selector(3);
  EXPECT_EQ(selector.next(), Way::dense);
  EXPECT_EQ(try_both(selector, 2, 1), 8);
  EXPECT_EQ(selector.medians(), (WaySelector::Times{2, 1}));
  EXPECT_FALSE(selector.chosen());
}

TEST(WaySelector, TakesTheFasterOneAndStaysWithIt) {
  for (const bool compressed_is_faster : {false, true}) {
    WaySelector selector(1);
    try_both(selector, 2, compressed_is_faster ? 1 : 3);
    selector.choose(selector.medians());
    const Way expected = compressed_is_faster ? Way::compressed : Way::dense;
    EXPECT_EQ(selector.chosen(), expected);
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(selector.next(), expected);
      selector.took(1000);
    }
    EXPECT_FALSE(selector.must_choose());
  }
}

TEST(WaySelector, TakesDenseWhereBothAreEquallyFast) {
  WaySelector selector(1);
  try_both(selector, 1, 1);
  selector.choose(selector.medians());
  EXPECT_EQ(selector.chosen(), Way::dense);
}

TEST(WaySelector, CompressedStepsMustMakeUpForMoreSteps) {
  for (const double dense : {2.9, 3.1}) {
    WaySelector selector(1, 1.5);
    try_both(selector, dense, 2);
    selector.choose(selector.medians());
    EXPECT_EQ(selector.chosen(), dense < 3 ? Way::dense : Way::compressed) << dense;
  }
}

TEST(WaySelector, OneSlowStepDoesNotDecide) {
  WaySelector selector(3);
  for (int step = 0; !selector.must_choose(); ++step)
    selector.took(selector.next() == Way::dense ? 2 : step == 5 ? 50 : 1);
  EXPECT_EQ(selector.medians(), (WaySelector::Times{2, 1}));
}

TEST(WaySelector, AWayThatIsGivenIsNotTried) {
  WaySelector selector(3);
  selector.choose(Way::compressed);
  EXPECT_EQ(selector.next(), Way::compressed);
  EXPECT_FALSE(selector.must_choose());
}

}  // namespace
}  // namespace nzcl_torch
