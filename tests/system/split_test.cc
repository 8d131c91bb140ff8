// Communicators that are split from one another: who is in which, what they share, and that each lives on its
// own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <ctime>
#include <latch>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/system/check_sum.h"
#include "tests/system/misuse.h"
#include "tests/system/ranks.h"
#include "tests/system/run_one.h"
#include "verbs/transport.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const auto kInvalidUsage = static_cast<int>(ErrorCode::invalid_usage);
const auto kTimeout = static_cast<int>(ErrorCode::timeout);
const auto kAborted = static_cast<int>(ErrorCode::aborted);

/// A sum that is under way on a communicator while others are used.
class Pending {
 public:
  Pending(Communicator& c, unsigned seed)
      : problem_(problem_of(c, seed)),
        data_(make_input(problem_, c.rank())),
        registered_(c.register_buffer(data_.data(), data_.size())),
        work_(c.allreduce({.input = data_.data(),
                           .output = data_.data(),
                           .count = problem_.count,
                           .type = problem_.type})) {}
  void check() {
    work_.wait();
    EXPECT_EQ(first_difference(data_, make_expected(problem_).data), -1);
  }

 private:
  Problem problem_;
  std::vector<std::byte> data_;
  RegisteredBuffer registered_;
  Work work_;
};

/// Over every transport within a host.
class SplitTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    if (name == "cma" && !verbs::may_write_processes()) GTEST_SKIP() << "cma is not available here";
  }
  Setting setting(int ranks, int dedicated = 0) const {
    Setting s = calm(ranks, dedicated);
    s.transport = GetParam();
    return s;
  }
};

TEST_P(SplitTest, ColoursAndReversedKeysWhileTheParentWorks) {
  EXPECT_THAT(run_ranks(setting(5),
                        [](Communicator& c) {
                          Pending before(c, 7);
                          Communicator child = c.split(c.rank() % 2, -c.rank());
                          EXPECT_EQ(child.size(), c.rank() % 2 == 0 ? 3 : 2);
                          EXPECT_EQ(child.rank(), (4 - c.rank()) / 2);
                          EXPECT_EQ(child.options().transport, c.options().transport);
                          for (unsigned round = 0; round < 5; ++round) {
                            Pending in_parent(c, round), in_child(child, round);
                            check_sum(child, 10 + round);
                            check_sum(c, 20 + round);
                            in_child.check();
                            in_parent.check();
                          }
                          before.check();
                        }),
              Each(""));
}

TEST_P(SplitTest, TheParentMayBeClosedFirst) {
  EXPECT_THAT(run_ranks(setting(4),
                        [](Communicator& c) {
                          Communicator child = c.split(c.rank() / 2);
                          Pending pending(child, 3);
                          c.close();
                          pending.check();
                          check_sum(child);
                          Communicator grandchild = child.split(0, -child.rank());
                          child.close();
                          EXPECT_EQ(grandchild.rank(), 1 - c.rank() % 2);
                          check_sum(grandchild);
                        }),
              Each(""));
}

TEST_P(SplitTest, BuffersOfOneAreThoseOfTheOther) {
  EXPECT_THAT(run_ranks(setting(3),
                        [](Communicator& c) {
                          Communicator child = c.split(0);
                          Buffer of_parent(c), of_child(child);
                          child.allreduce(of_parent.request()).wait();
                          c.allreduce(of_child.request()).wait();
                          EXPECT_THAT(of_parent.data, Each(3.0f));
                          EXPECT_THAT(of_child.data, Each(3.0f));
                        }),
              Each(""));
}

TEST_P(SplitTest, AnAbortedChildLeavesParentAndSiblingsAlone) {
  std::latch failed(2);  // both ranks of the child, before anybody closes
  EXPECT_THAT(run_ranks(setting(4),
                        [&](Communicator& c) {
                          Communicator child = c.split(c.rank() / 2);
                          Pending in_parent(c, 5);
                          if (c.rank() < 2) {
                            if (c.rank() == 0) child.abort("enough");
                            EXPECT_THAT(error_of([&] {
                                          while (true) child.barrier();
                                        }),
                                        Pair(kAborted, HasSubstr("enough")));
                            failed.count_down();
                          } else {
                            failed.wait();
                            check_sum(child);
                          }
                          in_parent.check();
                          check_sum(c);
                        }),
              Each(""));
}

TEST_P(SplitTest, AnAbortedParentLeavesItsChildrenAlone) {
  std::latch failed(3);
  EXPECT_THAT(run_ranks(setting(3),
                        [&](Communicator& c) {
                          Communicator child = c.split(0);
                          Pending in_child(child, 5);
                          if (c.rank() == 2) c.abort("enough");
                          EXPECT_THAT(error_of([&] {
                                        while (true) c.barrier();
                                      }),
                                      Pair(kAborted, HasSubstr("enough")));
                          EXPECT_THAT(error_of([&] { (void)c.split(0); }),
                                      Pair(kAborted, HasSubstr("enough")));
                          failed.arrive_and_wait();
                          in_child.check();
                          check_sum(child);
                        }),
              Each(""));
}

INSTANTIATE_TEST_SUITE_P(Transports, SplitTest, testing::Values("loopback", "cma", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// --- What does not depend on the transport

TEST(Split, ANegativeColourTakesPartAndGetsAnEmptyCommunicator) {
  EXPECT_THAT(run_ranks(calm(3),
                        [](Communicator& c) {
                          Communicator child = c.split(c.rank() == 1 ? kNoColor : 7);
                          EXPECT_EQ(child.valid(), c.rank() != 1);
                          if (child.valid()) {
                            EXPECT_EQ(child.size(), 2);
                            check_sum(child);
                          }
                          EXPECT_FALSE(c.split(-1000).valid()) << "no rank is in any";
                          check_sum(c);
                        }),
              Each(""));
}

TEST(Split, EqualKeysKeepTheOrderAndColoursMayBeAnyNumber) {
  EXPECT_THAT(run_ranks(calm(4),
                        [](Communicator& c) {
                          Communicator child = c.split(2147483647, c.rank() == 3 ? -2147483647 - 1 : 5);
                          EXPECT_EQ(child.rank(), (c.rank() + 1) % 4);
                          EXPECT_EQ(child.size(), 4);
                          check_sum(child);
                        }),
              Each(""));
}

TEST(Split, ARankMayBeAlone) {
  EXPECT_THAT(run_ranks(calm(2),
                        [](Communicator& c) {
                          Communicator child = c.split(c.rank());
                          EXPECT_EQ(child.size(), 1);
                          check_sum(child);
                          check_sum(c);
                        }),
              Each(""));
}

TEST(Split, ManyOneAfterTheOtherAndFromOneAnother) {
  EXPECT_THAT(run_ranks(calm(3),
                        [](Communicator& c) {
                          std::vector<Communicator> kept;
                          for (int i = 0; i < 12; ++i) {
                            Communicator& parent = i % 3 == 2 ? kept.back() : c;
                            Communicator child = parent.split(0, i % 2 ? -parent.rank() : parent.rank());
                            check_sum(child, static_cast<unsigned>(i));
                            if (i % 4 != 3) kept.push_back(std::move(child));
                          }
                          for (Communicator& k : kept) check_sum(k);
                          check_sum(c);
                        }),
              Each(""));
}

TEST(Split, OperationsInFlightAreNotDisturbed) {
  EXPECT_THAT(run_ranks(calm(2),
                        [](Communicator& c) {
                          std::optional<Pending> pending;
                          if (c.rank() == 0)
                            pending.emplace(c, 1);  // the other rank starts it after the split
                          Communicator child = c.split(0);
                          check_sum(child);
                          if (c.rank() == 1) pending.emplace(c, 1);
                          pending->check();
                        }),
              Each(""));
}

TEST(Split, ThreadsMaySplitAtTheSameTime) {
  EXPECT_THAT(run_ranks(calm(3),
                        [](Communicator& c) {
                          std::vector<std::jthread> threads;
                          for (int t = 0; t < 4; ++t) {
                            // Whichever calls of the ranks meet, their arguments are the same.
                            threads.emplace_back([&c] {
                              EXPECT_THAT(error_of([&] {
                                            Communicator child = c.split(0, -c.rank());
                                            EXPECT_EQ(child.rank(), 2 - c.rank());
                                            for (unsigned round = 0; round < 3; ++round)
                                              check_sum(child, round);
                                          }),
                                          Pair(0, ""));
                            });
                          }
                          check_sum(c);
                        }),
              Each(""));
}

TEST(Split, TheCallersAllgatherIsNotNeededAgain) {
  ThreadMeeting meeting(2);
  std::array<std::atomic<int>, 2> calls{};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto callback = meeting.callback(rank);
      auto& count = calls[static_cast<std::size_t>(rank)];
      Options options = calm(2).options;
      options.transport = "tcp";
      Communicator c(options, rank, 2, [&](std::string_view mine) { return ++count, callback(mine); });
      const int before = count;
      Communicator child = c.split(0);
      check_sum(child);
      EXPECT_EQ(count, before);
    });
  }
}

TEST(Split, ARankThatDoesNotComeIsNamedToAllAndAllMayTryAgain) {
  Setting s = calm(3);
  s.options.bootstrap_timeout_s = 3;
  std::latch timed_out(2);
  EXPECT_THAT(run_ranks(s,
                        [&](Communicator& c) {
                          const auto split = [&] { (void)c.split(0); };
                          const auto late =
                              Pair(kTimeout, AllOf(HasSubstr("rank 1 (pid"), HasSubstr("did not come")));
                          if (c.rank() == 1) timed_out.wait();
                          EXPECT_THAT(error_of(split), late);
                          if (c.rank() != 1) timed_out.count_down();
                          Communicator child = c.split(0, -c.rank());
                          EXPECT_EQ(child.rank(), 2 - c.rank());
                          check_sum(child);
                          check_sum(c);
                        }),
              Each(""));
}

TEST(Split, ARankThatHasClosedIsNamed) {
  std::latch over(2);
  std::barrier<> both_have_asked(2);  // otherwise the first of them to leave would be named to the other
  const auto errors = run_ranks(calm(3), [&](Communicator& c) {
    if (c.rank() == 2) {
      c.barrier();
      over.wait();  // so that one split is answered before this rank leaves, and one after
      return;
    }
    c.barrier();
    const auto closed = Pair(kInvalidUsage, AllOf(HasSubstr("rank 2 (pid"), HasSubstr("has closed")));
    std::jthread leave([&] { over.count_down(); });
    EXPECT_THAT(error_of([&] { (void)c.split(0); }), closed);
    EXPECT_THAT(error_of([&] { (void)c.split(0); }), closed);
    both_have_asked.arrive_and_wait();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Split, AfterCloseItIsRefused) {
  EXPECT_THAT(run_ranks(calm(2),
                        [](Communicator& c) {
                          c.close();
                          EXPECT_THAT(error_of([&] { (void)c.split(0); }),
                                      Pair(kInvalidUsage, HasSubstr("the communicator is closed")));
                        }),
              Each(""));
}

TEST(Split, AnEmptyCommunicatorSaysSo) {
  EXPECT_THAT(run_ranks(calm(1),
                        [](Communicator& c) {
                          Communicator none = c.split(kNoColor);
                          const auto empty = Pair(kInvalidUsage, HasSubstr("Communicator is empty"));
                          EXPECT_THAT(error_of([&] { (void)none.split(0); }), empty);
                          EXPECT_THAT(error_of([&] { none.barrier(); }), empty);
                        }),
              Each(""));
}

TEST(Split, CloseWaitsForASplitThatIsUnderWay) {
  std::atomic<bool> closing = false;
  EXPECT_THAT(run_ranks(calm(2),
                        [&](Communicator& c) {
                          if (c.rank() == 0) {
                            std::latch begun(1);
                            std::optional<Communicator> child;
                            std::jthread splitting([&] {
                              begun.count_down();
                              child.emplace(c.split(0));
                            });
                            begun.wait();
                            std::this_thread::sleep_for(std::chrono::milliseconds(100));
                            closing = true;
                            c.close();
                            splitting.join();
                            check_sum(*child);
                          } else {
                            while (!closing) std::this_thread::yield();
                            Communicator child = c.split(0);
                            c.close();
                            check_sum(child);
                          }
                        }),
              Each(""));
}

// --- Dedicated aggregators

TEST(SplitAggregators, ServeEveryColourAndSplitsOfSplits) {
  EXPECT_THAT(run_ranks(calm(4, 2),
                        [](Communicator& c) {
                          Communicator child = c.split(c.rank() % 2, -c.rank());
                          EXPECT_EQ(child.options().aggregators, 2);
                          EXPECT_THAT(child.describe(), HasSubstr("2 aggregators (dedicated)"));
                          Pending in_parent(c, 1), in_child(child, 2);
                          check_sum(child);
                          in_child.check();
                          in_parent.check();
                          Communicator one = child.split(child.rank());
                          check_sum(one);
                          for (int i = 0; i < 3; ++i) {
                            Communicator other = c.split(i == c.rank() ? kNoColor : 0);
                            if (other.valid()) check_sum(other);
                          }
                          check_sum(c);
                        }),
              Each(""));
}

TEST(SplitAggregators, ServeChildrenAfterTheParentIsClosed) {
  EXPECT_THAT(run_ranks(calm(3, 1),
                        [](Communicator& c) {
                          Communicator child = c.split(0);
                          c.close();
                          for (unsigned round = 0; round < 5; ++round) check_sum(child, round);
                          Communicator grandchild = child.split(child.rank() > 0);
                          check_sum(grandchild);
                        }),
              Each(""));
}

TEST(SplitAggregators, GoOnWithTheParentWhenAChildFailsAndSayItAtTheEnd) {
  std::latch failed(2);
  const auto errors = run_ranks(calm(2, 1), [&](Communicator& c) {
    Communicator child = c.split(0);
    if (c.rank() == 1) child.abort("enough");
    EXPECT_THAT(error_of([&] {
                  while (true) child.barrier();
                }),
                Pair(kAborted, HasSubstr("enough")));
    failed.arrive_and_wait();
    check_sum(c);
    Communicator another = c.split(0);
    check_sum(another);
  });
  EXPECT_THAT(errors, ElementsAre("", "", HasSubstr("enough")));
}

TEST(SplitAggregators, WaitQuietlyWhileOneWorkerHasLeftAndAnotherHasNot) {
  const auto errors = run_ranks(calm(2, 1), [](Communicator& c) {
    c.barrier();
    if (c.rank() == 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until rank 1 has left
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 2) << "the aggregator is busy";
    EXPECT_FALSE(c.async_error().has_value());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(SplitAggregators, WaitForTheNextSplitAfterOneThatTimedOut) {
  Setting s = calm(2, 1);
  s.options.bootstrap_timeout_s = 3;
  std::latch timed_out(1);
  EXPECT_THAT(run_ranks(s,
                        [&](Communicator& c) {
                          if (c.rank() == 1) timed_out.wait();
                          EXPECT_THAT(error_of([&] { (void)c.split(0); }),
                                      Pair(kTimeout, HasSubstr("rank 1 (pid")));
                          if (c.rank() == 0) timed_out.count_down();
                          Communicator child = c.split(0);
                          check_sum(child);
                        }),
              Each(""));
}

}  // namespace
}  // namespace nzcl::test
