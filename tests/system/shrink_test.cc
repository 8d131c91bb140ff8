// A communicator that is shrunk: ranks that die or are left out are gone, and those that are left go on with
// what they have registered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <functional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "nzcl/compress.h"
#include "tests/system/check_sum.h"
#include "tests/system/misuse.h"
#include "tests/system/ranks.h"
#include "tests/system/run_one.h"
#include "verbs/transport.h"

namespace nzcl::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const auto kInvalidUsage = static_cast<int>(ErrorCode::invalid_usage);
const auto kInvalidArgument = static_cast<int>(ErrorCode::invalid_argument);
const auto kAborted = static_cast<int>(ErrorCode::aborted);
const auto kMismatch = static_cast<int>(ErrorCode::mismatch);

int code_of(const std::function<void()>& call) { return error_of(call).first; }

/// Reduces until the communicator fails.
void reduce_until_failure(Communicator& c) {
  std::vector<float> data(10000, 1.0f);
  const auto registered = c.register_buffer(data.data(), data.size() * sizeof(float));
  EXPECT_THROW(
      {
        while (true) c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
      },
      Error);
}

/// As a process that ends does it.
void die(Communicator c) { c.abort("it dies"); }

/// A rank of a test that waits for the others which are still there. An error of one does not keep the others
/// waiting.
class Rendezvous {
 public:
  explicit Rendezvous(std::barrier<>& barrier) : barrier_(barrier) {}
  ~Rendezvous() { barrier_.arrive_and_drop(); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  void wait() { barrier_.arrive_and_wait(); }

 private:
  std::barrier<>& barrier_;
};

/// Over every transport within a host.
class ShrinkTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setting.transport = GetParam();
    if (setting.transport == "loopback") return;
    for (const auto& info : verbs::list_transports()) {
      if (info.name == setting.transport && !info.available) GTEST_SKIP() << info.detail;
    }
  }
  Setting setting = calm(4);
};

TEST_P(ShrinkTest, GoesOnWithoutRanksThatDieWhicheverTheseAre) {
  for (const int first : {0, 1, 3}) {
    for (const int second : {-1, 0, 2, 3}) {
      SCOPED_TRACE(testing::Message() << first << " and " << second << " die");
      std::barrier summed(4);
      const auto errors = run_ranks(setting, [&](Communicator& c) {
        Rendezvous others(summed);
        check_sum(c);
        others.wait();
        const int rank = c.rank();
        if (rank == first || rank == second) return die(std::move(c));
        reduce_until_failure(c);
        Communicator smaller = c.shrink();
        EXPECT_EQ(smaller.size(), first == second || second < 0 ? 3 : 2);
        int before = 0;  // ranks that are left and come before this one
        for (int r = 0; r < rank; ++r) before += r != first && r != second ? 1 : 0;
        EXPECT_EQ(smaller.rank(), before);
        for (unsigned seed = 2; seed < 5; ++seed) check_sum(smaller, seed);
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

TEST_P(ShrinkTest, BuffersStayRegistered) {
  const auto errors = run_ranks(setting, [](Communicator& c) {
    std::vector<float> data(5000);
    const auto registered = c.register_buffer(data.data(), data.size() * sizeof(float));
    if (c.rank() == 2) return die(std::move(c));
    reduce_until_failure(c);
    Communicator smaller = c.shrink();
    c = Communicator(std::move(smaller));  // the old one ends first
    std::fill(data.begin(), data.end(), 1.0f);
    c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
    EXPECT_THAT(data, Each(3.0f));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(ShrinkTest, ShrinksAgainAndAgain) {
  std::barrier summed(4);
  const auto errors = run_ranks(setting, [&](Communicator& c) {
    Rendezvous others(summed);
    Communicator now = std::move(c);
    for (int size = 4; size > 1; --size) {
      check_sum(now, static_cast<unsigned>(size));
      others.wait();
      if (now.rank() == size % 2) return die(std::move(now));  // the first one or the second one
      reduce_until_failure(now);
      now = now.shrink();
      EXPECT_EQ(now.size(), size - 1);
    }
    check_sum(now);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(ShrinkTest, LeavesOutRanksThatLiveAndOperationsInFlightEndFirst) {
  std::barrier finished(4);
  const auto errors = run_ranks(setting, [&](Communicator& c) {
    Rendezvous others(finished);
    constexpr std::size_t kOperations = 20;
    std::vector<std::vector<float>> data(kOperations, std::vector<float>(50000, 1.0f));
    std::vector<RegisteredBuffer> registered;
    std::vector<Work> works;
    for (auto& d : data) {
      registered.push_back(c.register_buffer(d.data(), d.size() * sizeof(float)));
      works.push_back(c.allreduce({.input = d.data(), .output = d.data(), .count = d.size()}));
    }
    if (c.rank() == 0 || c.rank() == 2) {
      for (Work& work : works) work.wait();
      return others.wait();  // and ends at once
    }
    others.wait();
    const std::array left_out{0, 2};
    Communicator smaller = c.shrink({.leave_out = left_out});
    for (Work& work : works) work.wait();
    for (const auto& d : data) EXPECT_THAT(d, Each(4.0f));
    EXPECT_EQ(smaller.size(), 2);
    check_sum(smaller);
  });
  EXPECT_THAT(errors, Each(""));
}
INSTANTIATE_TEST_SUITE_P(Transports, ShrinkTest, testing::Values("loopback", "cma", "shm", "tcp"));

TEST(Shrink, AnAbortIsEnoughAndNobodyNeedsToDie) {
  const auto errors = run_ranks(calm(3), [](Communicator& c) {
    if (c.rank() == 1) c.abort("once more, please");
    reduce_until_failure(c);
    Communicator same = c.shrink();
    EXPECT_EQ(same.size(), 3);
    EXPECT_EQ(same.rank(), c.rank());
    check_sum(same);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Shrink, AHealthyCommunicatorCannotBeUsedAfterwards) {
  const auto errors = run_ranks(calm(2), [](Communicator& c) {
    Communicator same = c.shrink();
    EXPECT_EQ(code_of([&] { c.barrier(); }), kAborted);
    EXPECT_EQ(code_of([&] { (void)c.shrink(); }), kInvalidUsage);
    check_sum(same);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Shrink, ARankThatIsLeftOutLearnsIt) {
  const auto errors = run_ranks(calm(3), [](Communicator& c) {
    const std::array left_out{1};
    if (c.rank() == 1) {
      reduce_until_failure(c);
      EXPECT_EQ(code_of([&] { (void)c.shrink(); }), kAborted);
      EXPECT_EQ(code_of([&] { (void)c.shrink(); }), kAborted);
      return;
    }
    Communicator smaller = c.shrink({.leave_out = left_out});
    check_sum(smaller);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Shrink, ARankThatDoesNotCallInTimeIsLeftOut) {
  for (const int silent : {0, 2}) {
    std::barrier over(4);
    const auto errors = run_ranks(calm(4), [&](Communicator& c) {
      const int rank = c.rank();
      if (rank == 1) c.abort("a reason to shrink");
      reduce_until_failure(c);
      Rendezvous others(over);
      if (rank == silent) {
        others.wait();
        EXPECT_EQ(code_of([&] { (void)c.shrink(); }), kAborted);
        return;
      }
      EXPECT_EQ(error_of([&] {
                  Communicator smaller = c.shrink({.timeout = std::chrono::milliseconds(300)});
                  EXPECT_EQ(smaller.size(), 3);
                  check_sum(smaller);
                }).second,
                "");
      others.wait();
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Shrink, AllLeaveOutTheSame) {
  std::barrier refused(3);
  const auto errors = run_ranks(calm(3), [&](Communicator& c) {
    Rendezvous others(refused);
    const std::array last{2};
    if (c.rank() == 2) c.abort("a reason to shrink");
    reduce_until_failure(c);
    if (c.rank() < 2) {
      const auto left_out = std::span<const int>(last).first(c.rank() == 0 ? 0 : 1);
      EXPECT_EQ(code_of([&] { (void)c.shrink({.leave_out = left_out}); }), kMismatch);
    }
    others.wait();
    Communicator same = c.shrink();  // the call may be repeated
    EXPECT_EQ(same.size(), 3);
    check_sum(same);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Shrink, RefusesRanksThatCannotBeLeftOut) {
  const auto errors = run_ranks(calm(2), [](Communicator& c) {
    const std::array unknown{2}, self{c.rank()}, negative{-1};
    for (const std::span<const int> ranks :
         {std::span<const int>(unknown), std::span<const int>(self), std::span<const int>(negative)})
      EXPECT_EQ(code_of([&] { (void)c.shrink({.leave_out = ranks}); }), kInvalidArgument);
    EXPECT_EQ(code_of([&] { (void)c.shrink({.timeout = std::chrono::seconds(-1)}); }), kInvalidArgument);
    check_sum(c);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Shrink, DedicatedAggregatorsGoOnToServe) {
  std::barrier summed(3);
  const auto errors = run_ranks(calm(3, 2), [&](Communicator& c) {
    Rendezvous others(summed);
    check_sum(c);
    others.wait();
    if (c.rank() == 0) return die(std::move(c));
    reduce_until_failure(c);
    Communicator smaller = c.shrink();
    EXPECT_THAT(smaller.describe(), HasSubstr("2 aggregators (dedicated)"));
    for (unsigned seed = 2; seed < 5; ++seed) check_sum(smaller, seed);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Shrink, AHierarchyIsPlannedAnew) {
  Setting setting = calm(6);
  setting.options.tune.host_ranks = 2;
  setting.options.algorithm = Algorithm::hierarchy;
  std::barrier summed(6);
  const auto errors = run_ranks(setting, [&](Communicator& c) {
    Rendezvous others(summed);
    check_sum(c);
    others.wait();
    if (c.rank() == 3) return die(std::move(c));
    reduce_until_failure(c);
    Communicator smaller = c.shrink();
    EXPECT_EQ(smaller.size(), 5);
    check_sum(smaller);
  });
  EXPECT_THAT(errors, Each(""));
}

/// What a state sends, as a dense tensor.
std::vector<float> dense(const CompressedGradient& sent, std::size_t elements) {
  std::vector<float> all(elements);
  for (std::size_t i = 0; i < sent.indices.size(); ++i)
    all[static_cast<std::size_t>(sent.indices[i])] = sent.values[i];
  return all;
}

TEST(Shrink, TheStateOfACompressorGoesOn) {
  constexpr std::size_t kElements = 140'001;
  std::barrier summed(3);
  const auto errors = run_ranks(calm(3), [&](Communicator& c) {
    Rendezvous others(summed);
    const Compressor compressor = compressor_from_text("topk:0.05:exact");
    CompressorState state(compressor, kElements), alike(compressor, kElements);
    std::vector<float> output(kElements);
    const auto registered = c.register_buffer(output.data(), output.size() * sizeof(float));
    std::vector<float> gradient(kElements);
    const auto step = [&](Communicator& on, std::size_t number) {
      for (std::size_t i = 0; i < kElements; ++i)
        gradient[i] =
            static_cast<float>((i * 2654435761u + number * 97 + static_cast<std::size_t>(on.rank())) % 1000);
      on.allreduce_compressed({.state = &state, .input = gradient.data(), .output = output.data()}).wait();
      return dense(alike.compress(gradient, on.rank(), on.size()), kElements);
    };
    step(c, 0);
    others.wait();
    if (c.rank() == 1) return die(std::move(c));
    reduce_until_failure(c);
    Communicator smaller = c.shrink();
    std::vector<float> expected = step(smaller, 1);  // what this rank sends, with what it has kept
    const auto handle = smaller.register_buffer(expected.data(), expected.size() * sizeof(float));
    smaller
        .allreduce(
            {.input = expected.data(), .output = expected.data(), .count = kElements, .block_elems = 1})
        .wait();
    EXPECT_EQ(output, expected);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Shrink, SplitsOfASmallerCommunicatorWork) {
  const auto errors = run_ranks(calm(4), [](Communicator& c) {
    if (c.rank() == 1) return die(std::move(c));
    reduce_until_failure(c);
    Communicator smaller = c.shrink();
    Communicator part = smaller.split(smaller.rank() == 0 ? 0 : 1);
    EXPECT_EQ(part.size(), smaller.rank() == 0 ? 1 : 2);
    check_sum(part);
    check_sum(smaller);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
