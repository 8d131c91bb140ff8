// Ranks that close their communicator while others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>

#include "tests/system/misuse.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int kInvalidUsage = static_cast<int>(ErrorCode::invalid_usage);

/// With a timeout that no test lives to see.
Setting patient(int ranks, int dedicated = 0) {
  Setting s = quick(ranks, dedicated);
  s.options.timeout_s = 3600;
  return s;
}

auto names(int rank, int operation) {
  const std::string text = "operation " + std::to_string(operation) + ": rank " + std::to_string(rank);
  return Pair(kInvalidUsage, AllOf(HasSubstr(text), HasSubstr("did not join it and has left")));
}

TEST(LeaveTest, ARankThatLeavesEarlyFailsWhatItDidNotJoinOnAllOthersAtOnce) {
  for (const char* transport : {"loopback", "cma", "shm", "libfabric-shm", "tcp"}) {
    for (const int leaver : {0, 1, 2}) {
      Setting s = patient(3);
      s.transport = transport;
      run_ranks(s, [&](Communicator& c) {
        Buffer b(c);
        for (int batch = 0; batch < 3; ++batch) c.allreduce(b.request()).wait();
        EXPECT_EQ(b.data[7], 27.0f);
        if (c.rank() == leaver) return c.close();
        EXPECT_THAT(error_of([&] { c.allreduce(b.request()).wait(); }), names(leaver, 3))
            << transport << ", " << leaver << " leaves";
      });
    }
  }
}

TEST(LeaveTest, ItMayHaveBeenWaitedForAlready) {
  for (const int dedicated : {0, 2}) {
    std::atomic<int> waiting{0};
    run_ranks(patient(3, dedicated), [&](Communicator& c) {
      Buffer b(c);
      c.allreduce(b.request()).wait();
      if (c.rank() == 1) {
        while (waiting != 2) std::this_thread::yield();
        return c.close();
      }
      Work work = c.allreduce(b.request());
      ++waiting;
      EXPECT_THAT(error_of([&] { work.wait(); }), names(1, 1));
      ASSERT_TRUE(c.async_error()) << "no later operation can complete either";
      EXPECT_THAT(error_of([&] { c.barrier(); }), names(1, 1));
    });
  }
}

TEST(LeaveTest, ItMayHaveLeftLongBefore) {
  Setting s = patient(2);
  s.options.close_timeout_s = 0.2;
  std::promise<void> gone;
  run_ranks(s, [&](Communicator& c) {
    Buffer b(c);
    c.allreduce(b.request()).wait();
    if (c.rank() == 1) {
      EXPECT_THAT(error_of([&] { c.close(); }).second, HasSubstr("not every member left"));
      { const Communicator ended = std::move(c); }
      return gone.set_value();
    }
    gone.get_future().wait();
    EXPECT_FALSE(c.async_error()) << "nothing is wrong as long as nobody starts a further operation";
    EXPECT_THAT(error_of([&] { c.allreduce(b.request()).wait(); }), names(1, 1));
  });
}

TEST(LeaveTest, WhatItDidJoinStillCompletesOnAllOthers) {
  for (int turn = 0; turn < 100; ++turn) {
    run_ranks(patient(4), [&](Communicator& c) {
      Buffer large(c, 300000), small(c, 10), further(c);
      Work first = c.allreduce(large.request());
      Work second = c.allreduce(small.request());
      if (c.rank() == 1) return c.close();
      Work third;
      if (c.rank() != 2) third = c.allreduce(further.request());
      EXPECT_THAT(error_of([&] { first.wait(), second.wait(); }), Pair(0, ""));
      EXPECT_EQ(large.data[299999], 4.0f);
      EXPECT_EQ(small.data[9], 4.0f);
      if (c.rank() != 2) {
        EXPECT_THAT(error_of([&] { third.wait(); }), AnyOf(names(1, 2), names(2, 2)));
      }
    });
  }
}

TEST(LeaveTest, AllMayLeaveAsSoonAsTheirOwnOperationsAreOver) {
  for (int turn = 0; turn < 100; ++turn) {
    const auto errors = run_ranks(patient(3, turn % 2), [&](Communicator& c) {
      Buffer b(c);
      for (int batch = 0; batch < 3; ++batch) c.allreduce(b.request()).wait();
      c.close();
      EXPECT_FALSE(c.async_error());
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(LeaveTest, ARequestThatOneRankRefusedAndTheOthersNeverMadeIsNoMistake) {
  for (const int alone : {0, 1}) {
    const auto errors = run_ranks(patient(2), [&](Communicator& c) {
      Buffer b(c);
      c.allreduce(b.request()).wait();
      AllreduceRequest wrong = b.request();
      wrong.input = nullptr;
      if (c.rank() == alone) {
        EXPECT_NE(error_of([&] { (void)c.allreduce(wrong); }).second, "");
      }
      c.close();
      EXPECT_FALSE(c.async_error());
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(LeaveTest, OfASplitTheParentGoesOn) {
  const auto errors = run_ranks(patient(3), [&](Communicator& c) {
    Buffer b(c);
    {
      Communicator child = c.split(0);
      Buffer of_child(child);
      if (child.rank() != 2) {
        EXPECT_THAT(error_of([&] { child.allreduce(of_child.request()).wait(); }), names(2, 0));
      }
    }
    c.allreduce(b.request()).wait();
    EXPECT_EQ(b.data[0], 3.0f);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
