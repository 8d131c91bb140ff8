// What goes wrong with the collectives: requests that are refused, and ranks that call different ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <latch>

#include "tests/system/misuse.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Nothing here may need the timeout to end.
Setting patient(int ranks, int dedicated, int lanes = 1) {
  Setting s = quick(ranks, dedicated);
  s.options.timeout_s = 3600;
  s.options.lanes = lanes;
  return s;
}

struct Buffers {
  Buffers(Communicator& communicator, std::uint64_t n)
      : c(communicator), count(n), in(n * 8), out(n * 8), foreign(n * 8) {
    std::fill(in.begin(), in.end(), 1.0f);
    in_handle = c.register_buffer(in.data(), in.size() * 4);
    out_handle = c.register_buffer(out.data(), out.size() * 4);
  }
  /// Later collectives still work.
  void check() {
    std::fill(in.begin(), in.end(), 1.0f);
    c.reduce_scatter({.input = in.data(), .output = out.data(), .count = count}).wait();
    EXPECT_EQ(out[count - 1], static_cast<float>(c.size()));
    c.broadcast({.data = out.data(), .count = count, .root = c.size() - 1}).wait();
    c.allreduce({.input = in.data(), .output = out.data(), .count = count}).wait();
    EXPECT_EQ(out[0], static_cast<float>(c.size()));
  }
  Communicator& c;
  std::uint64_t count;
  std::vector<float> in, out, foreign;
  RegisteredBuffer in_handle, out_handle;
};

/// Two calls that cannot meet, and what the failure must say of each.
struct Disagreement {
  const char* name;
  std::function<Work(Buffers&)> one, other;
  const char *of_one, *of_other;
};

const std::array<std::uint64_t, 3> kCounts{3, 4, 5}, kOtherCounts{4, 4, 5}, kMovedCounts{5, 4, 3};
Work allreduce(Buffers& b) {
  return b.c.allreduce({.input = b.in.data(), .output = b.out.data(), .count = b.count});
}
Work broadcast(Buffers& b, int root, std::uint64_t count) {
  return b.c.broadcast({.data = b.in.data(), .count = count, .root = root});
}
Work allgather(Buffers& b, std::span<const std::uint64_t> counts) {
  return b.c.allgather({.input = b.in.data(), .output = b.out.data(), .count = b.count, .counts = counts});
}
const std::array kDisagreements{
    Disagreement{"broadcast_allreduce", [](Buffers& b) { return broadcast(b, 0, b.count); }, allreduce,
                 "broadcast(", "allreduce("},
    Disagreement{"roots", [](Buffers& b) { return broadcast(b, 0, b.count); },
                 [](Buffers& b) { return broadcast(b, 2, b.count); }, "root 0", "root 2"},
    Disagreement{"broadcast_counts", [](Buffers& b) { return broadcast(b, 0, b.count); },
                 [](Buffers& b) { return broadcast(b, 0, 7); }, "broadcast(count", "broadcast(count 7"},
    Disagreement{"kinds",
                 [](Buffers& b) {
                   return b.c.reduce_scatter(
                       {.input = b.in.data(), .output = b.out.data(), .count = b.count});
                 },
                 [](Buffers& b) { return allgather(b, {}); }, "reduce_scatter(", "allgather("},
    Disagreement{"given_counts", [](Buffers& b) { return allgather(b, kCounts); },
                 [](Buffers& b) { return allgather(b, kOtherCounts); }, "allgather(count at most 5",
                 "checksum"},
    Disagreement{"moved_counts", [](Buffers& b) { return allgather(b, kCounts); },
                 [](Buffers& b) { return allgather(b, kMovedCounts); }, "allgather(count at most 5",
                 "checksum"},
};

class DisagreementTest : public ::testing::TestWithParam<std::tuple<std::size_t, int, std::uint64_t>> {};

TEST_P(DisagreementTest, NamesBothCalls) {
  const auto& [index, dedicated, count] = GetParam();
  const Disagreement& d = kDisagreements[index];
  for (const int lanes : {1, 2}) {
    const auto errors = run_ranks(patient(3, dedicated, lanes), [&, n = count](Communicator& c) {
      Buffers b(c, n);
      b.check();
      Work work = (c.rank() == 1 ? d.other : d.one)(b);
      work.wait();
      while (true) c.barrier();  // until this rank learns of it
    });
    for (std::size_t r = 0; r < 3; ++r)
      EXPECT_THAT(errors[r], AllOf(HasSubstr("ranks disagree"), HasSubstr(d.of_one), HasSubstr(d.of_other)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DisagreementTest,
                         ::testing::Combine(::testing::Range(std::size_t{0}, kDisagreements.size()),
                                            ::testing::Values(0, 2), ::testing::Values(40, 100003)),
                         [](const auto& place) {
                           return std::string(kDisagreements[std::get<0>(place.param)].name) +
                                  (std::get<1>(place.param) ? "_dedicated_" : "_") +
                                  std::to_string(std::get<2>(place.param));
                         });

/// A request that rank 1 spoils, and the text that all read.
struct Mistake {
  const char* call;
  std::function<Work(Buffers&, bool wrong)> start;
  const char* text;
};
const std::array kMistakes{
    Mistake{"broadcast",
            [](Buffers& b, bool wrong) {
              return b.c.broadcast({.data = wrong ? b.foreign.data() : b.in.data(), .count = b.count});
            },
            "data ("},
    Mistake{
        "reduce",
        [](Buffers& b, bool wrong) {
          return b.c.reduce(
              {.input = wrong ? nullptr : b.in.data(), .output = b.out.data(), .count = b.count, .root = 2});
        },
        "input is null"},
    Mistake{"reduce",
            [](Buffers& b, bool wrong) {
              return b.c.reduce({.input = b.in.data(),
                                 .output = wrong ? b.in.data() + 1 : b.out.data(),
                                 .count = b.count,
                                 .root = 1});
            },
            "input and output overlap"},
    Mistake{"reduce_scatter",
            [](Buffers& b, bool wrong) {
              return b.c.reduce_scatter(
                  {.input = b.in.data(), .output = wrong ? b.in.data() : b.out.data(), .count = b.count});
            },
            "input and output overlap without being the same where they belong together"},
    Mistake{"allgather",
            [](Buffers& b, bool wrong) {
              static const std::vector<std::uint64_t> kBits(77777);
              return b.c.allgather({.input = b.in.data(),
                                    .output = b.out.data(),
                                    .counts = kCounts,
                                    .bitmap = wrong ? kBits : std::span<const std::uint64_t>()});
            },
            "bitmap has 77777 words"},
    Mistake{"allgather",
            [](Buffers& b, bool wrong) {
              return b.c.allgather({.input = b.in.data(),
                                    .output = b.out.data(),
                                    .count = b.count,
                                    .timeout = std::chrono::nanoseconds(wrong ? -1 : 0)});
            },
            "timeout is"},
};

TEST(CollectiveRefusal, FailsTheOperationOnEveryRankAndNothingElse) {
  for (const Mistake& mistake : kMistakes) {
    for (const int dedicated : {0, 2}) {
      for (const std::uint64_t count : {40, 100003}) {
        const auto errors = run_ranks(patient(3, dedicated), [&](Communicator& c) {
          Buffers b(c, count);
          b.check();
          const bool mine = c.rank() == 1;
          const auto error = error_of([&] { mistake.start(b, mine).wait(); });
          EXPECT_THAT(error.second, HasSubstr(mistake.text));
          EXPECT_THAT(error.second, StartsWith(mine ? std::string(mistake.call) + ": "
                                                    : "operation 3: rank 1 refused its request: "));
          for (int i = 0; i < 3; ++i) b.check();
          EXPECT_EQ(c.async_error(), std::nullopt);
        });
        EXPECT_THAT(errors, Each("")) << mistake.call << ": " << mistake.text;
      }
    }
  }
}

TEST(CollectiveRefusal, OfARequestWithoutShapeFailsTheCommunicator) {
  const std::array<std::function<Work(Buffers&, bool)>, 2> calls{
      [](Buffers& b, bool wrong) { return broadcast(b, wrong ? 3 : 0, b.count); },
      [](Buffers& b, bool wrong) {
        return allgather(b, wrong ? std::span(kCounts).first(2) : std::span(kCounts));
      }};
  const std::array texts{"root 3 is no rank; there are 3", "2 counts are given for 3 ranks"};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto errors = run_ranks(patient(3, 0), [&](Communicator& c) {
      Buffers b(c, 40);
      const auto error = error_of([&] { calls[i](b, c.rank() == 1).wait(); });
      if (c.rank() == 1) {
        EXPECT_THAT(error.second, HasSubstr(texts[i]));
      }
      while (true) c.barrier();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks disagree"), HasSubstr(texts[i]))));
  }
}

/// A rank that does not come is named by all others.
TEST(CollectiveTimeout, NamesTheRankThatDoesNotCome) {
  for (const int dedicated : {0, 1}) {
    Setting s = quick(3, dedicated);
    s.options.timeout_s = 0.3;
    std::atomic<int> failed{0};
    const auto errors = run_ranks(s, [&](Communicator& c) {
      Buffers b(c, 1000);
      if (c.rank() == 2) {
        while (failed < 2) std::this_thread::yield();
        return;
      }
      const auto error = error_of([&] { broadcast(b, 0, b.count).wait(); });
      EXPECT_THAT(error.second,
                  AllOf(HasSubstr("broadcast(count 1000"), HasSubstr("rank(s) 2 did not join")));
      ++failed;
    });
  }
}

// --- Callbacks

TEST(Callback, ComesOnceForEveryOperationWithoutAThreadThatWaits) {
  const auto errors = run_ranks(patient(3, 0), [](Communicator& c) {
    Buffers b(c, 20011);
    constexpr int kOperations = 40;
    std::vector<std::promise<bool>> done(kOperations);
    std::atomic<int> calls{0};
    for (int i = 0; i < kOperations; ++i) {
      Work work = i % 2 ? allreduce(b) : broadcast(b, i % 3, b.count);
      auto& promise = done[static_cast<std::size_t>(i)];
      work.on_complete([&, work](const Error* error) mutable {
        ++calls;
        promise.set_value(error == nullptr && work.test());
      });
      EXPECT_TRUE(promise.get_future().get()) << i;
    }
    EXPECT_EQ(calls, kOperations);
    Work last = allreduce(b);
    last.wait();
    const auto caller = std::this_thread::get_id();
    bool called = false;
    last.on_complete([&](const Error*) { called = std::this_thread::get_id() == caller; });
    EXPECT_TRUE(called) << "of an operation that has completed: at once, on the calling thread";
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Callback, MayStartAndWaitForOperations) {
  const auto errors = run_ranks(patient(2, 0), [](Communicator& c) {
    Buffers b(c, 300);
    std::promise<float> sum;
    broadcast(b, 0, b.count).on_complete([&](const Error*) {
      allreduce(b).wait();
      sum.set_value(b.out[299]);
    });
    EXPECT_EQ(sum.get_future().get(), 2.0f);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Callback, GetsTheErrorAndIsOverWhenTheCommunicatorIsClosed) {
  std::latch started(1);
  const auto errors = run_ranks(patient(2, 0), [&started](Communicator& c) {
    Buffers b(c, 300);
    std::string text, closing;
    std::atomic<int> calls{0};
    if (c.rank() == 0) {
      Work work = allreduce(b);
      work.on_complete([&](const Error* error) {
        closing = error_of([&] { c.close(); }).second;
        text = error == nullptr ? "none" : error->what();
        ++calls;
      });
      work.on_complete([&](const Error*) { throw std::runtime_error("which is logged, and nothing else"); });
      started.count_down();
    } else {
      started.wait();
      c.abort("for the test");
    }
    c.close();
    EXPECT_EQ(calls, c.rank() == 0 ? 1 : 0);
    if (c.rank() == 0) {
      EXPECT_THAT(text, HasSubstr("aborted by rank 1: for the test"));
      EXPECT_THAT(closing, HasSubstr("a completion callback must not close"));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
