// A communicator that grows: new ranks come from outside, and old ones keep their numbers and what they have
// registered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/system/check_sum.h"
#include "tests/system/misuse.h"
#include "tests/system/ranks.h"
#include "verbs/transport.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// A file of this test's own, through which new ranks find rank 0.
std::string place_for(const std::string& what) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(test->test_suite_name()) + "-" + test->name() + "-" + what;
  for (char& c : name) {
    if (c == '/') c = '-';
  }
  return (std::filesystem::temp_directory_path() / ("nzcl-test-" + std::to_string(::getpid()) + "-" + name))
      .string();
}

/// A process that starts as rank `rank` of `size`, and needs to know no more.
class NewRanks {
 public:
  using Body = std::function<void(Communicator&)>;
  /// Ranks first to size - 1.
  NewRanks(const Setting& setting, int first, int size, const std::string& place, const Body& body)
      : errors_(static_cast<std::size_t>(size - first)) {
    for (int rank = first; rank < size; ++rank) {
      threads_.emplace_back([=, this, &error = errors_[static_cast<std::size_t>(rank - first)]] {
        Options options = setting.options;
        options.transport = setting.transport;
        options.rank = rank;
        options.world_size = size;
        options.rendezvous_file = place;
        try {
          Communicator communicator(options);
          EXPECT_EQ(communicator.rank(), rank);
          EXPECT_EQ(communicator.size(), size);
          body(communicator);
        } catch (const std::exception& e) {
          error = e.what();
        }
      });
    }
  }
  /// Waits until they have ended.
  std::vector<std::string> errors() {
    threads_.clear();
    return errors_;
  }

 private:
  std::vector<std::string> errors_;
  std::vector<std::jthread> threads_;
};

void check_sums(Communicator& c) {
  for (unsigned seed = 1; seed < 4; ++seed) check_sum(c, seed);
}

/// As a process that ends does it.
void die(Communicator c) { c.abort("it dies"); }

class GrowTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const auto& info : verbs::list_transports()) {
      if (info.name == GetParam() && !info.available) GTEST_SKIP() << info.detail;
    }
  }
  static Setting of(int ranks) {
    Setting setting = calm(ranks);
    setting.transport = GetParam();
    return setting;
  }
};

TEST_P(GrowTest, NewRanksFollowTheOldOnesAndBuffersStayRegistered) {
  const std::string place = place_for("1");
  NewRanks others(of(3), 3, 5, place, [](Communicator& c) {
    std::vector<float> data(5000, static_cast<float>(c.rank()));
    const auto registered = c.register_buffer(data.data(), data.size() * sizeof(float));
    c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
    EXPECT_THAT(data, Each(10.0f));
    check_sums(c);
  });
  const auto errors = run_ranks(of(3), [&](Communicator& c) {
    std::vector<float> data(5000, static_cast<float>(c.rank()));
    const auto registered = c.register_buffer(data.data(), data.size() * sizeof(float));
    check_sum(c);
    const int rank = c.rank();
    c = c.grow({.size = 5, .place = place});
    EXPECT_EQ(c.rank(), rank);
    EXPECT_EQ(c.size(), 5);
    c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
    EXPECT_THAT(data, Each(10.0f));
    check_sums(c);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(others.errors(), Each(""));
}

TEST_P(GrowTest, GrowsAgainAndAgainAlsoFromOneRank) {
  const std::string first = place_for("1"), second = place_for("2");
  NewRanks second_one(of(1), 1, 2, first, [&](Communicator& c) {
    check_sum(c);
    c = c.grow({.size = 4, .place = second});
    check_sums(c);
  });
  NewRanks last_ones(of(1), 2, 4, second, check_sums);
  const auto errors = run_ranks(of(1), [&](Communicator& c) {
    check_sum(c);
    c = c.grow({.size = 2, .place = first});
    check_sum(c);
    c = c.grow({.size = 4, .place = second});
    check_sums(c);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(second_one.errors(), Each(""));
  EXPECT_THAT(last_ones.errors(), Each(""));
}

TEST_P(GrowTest, RanksComeBackWhoeverHasDied) {
  for (const int dead : {0, 2}) {
    const std::string place = place_for(std::to_string(dead));
    NewRanks back(of(3), 2, 3, place, check_sums);
    std::barrier summed(3);
    const auto errors = run_ranks(of(3), [&](Communicator& c) {
      check_sum(c);
      summed.arrive_and_wait();
      if (c.rank() == dead) return die(std::move(c));
      std::vector<float> data(10000, 1.0f);
      const auto registered = c.register_buffer(data.data(), data.size() * sizeof(float));
      const auto reduce = [&] {
        c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
      };
      EXPECT_THROW(
          {
            while (true) reduce();
          },
          Error);
      c = c.shrink();
      c = c.grow({.size = 3, .place = place});
      check_sums(c);
    });
    EXPECT_THAT(errors, Each(""));
    EXPECT_THAT(back.errors(), Each(""));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, GrowTest, testing::Values("cma", "shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

Setting over_shm(int ranks) {
  Setting setting = calm(ranks);
  setting.transport = "shm";
  return setting;
}

/// The error of the call, after which the communicator is what it was.
std::pair<int, std::string> error_that_changes_nothing(Communicator& c, const std::function<void()>& call) {
  const auto error = error_of(call);
  EXPECT_EQ(c.async_error(), std::nullopt);
  check_sum(c);
  return error;
}

TEST(Grow, NewRanksThatDoNotComeAreNamedAndNothingIsLost) {
  const std::string place = place_for("1");
  const auto errors = run_ranks(over_shm(2), [&](Communicator& c) {
    const auto [code, text] = error_that_changes_nothing(
        c, [&] { c = c.grow({.size = 4, .place = place, .timeout = std::chrono::seconds(1)}); });
    EXPECT_EQ(code, static_cast<int>(ErrorCode::timeout)) << text;
    EXPECT_THAT(text, AllOf(HasSubstr("rank 2"), HasSubstr("rank 3")));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Grow, SucceedsAfterItHasFailed) {
  const std::string place = place_for("1");
  std::vector<std::string> errors_of_new_ranks;
  const auto errors = run_ranks(over_shm(2), [&](Communicator& c) {
    error_that_changes_nothing(
        c, [&] { c = c.grow({.size = 4, .place = place, .timeout = std::chrono::seconds(1)}); });
    c.barrier();
    std::optional<NewRanks> others;
    if (c.rank() == 1) others.emplace(over_shm(2), 2, 4, place, check_sums);
    c = c.grow({.size = 4, .place = place});
    check_sums(c);
    if (others) {
      c.close();
      errors_of_new_ranks = others->errors();
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(errors_of_new_ranks, Each(""));
}

TEST(Grow, AllAskForTheSameSize) {
  const auto errors = run_ranks(over_shm(3), [&](Communicator& c) {
    const auto [code, text] =
        error_that_changes_nothing(c, [&] { c = c.grow({.size = c.rank() == 1 ? 5 : 4, .place = "/x"}); });
    EXPECT_EQ(code, static_cast<int>(ErrorCode::mismatch));
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("4"), HasSubstr("5")));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Grow, NobodyShrinksMeanwhile) {
  const auto errors = run_ranks(over_shm(2), [&](Communicator& c) {
    const auto [code, text] = error_that_changes_nothing(
        c, [&] { c = c.rank() == 1 ? c.shrink() : c.grow({.size = 3, .place = "/x"}); });
    EXPECT_EQ(code, static_cast<int>(ErrorCode::mismatch));
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0"), HasSubstr("grows"), HasSubstr("rank 1")));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Grow, ARankThatDoesNotCallIsNamedAndNothingIsLost) {
  const auto errors = run_ranks(over_shm(3), [&](Communicator& c) {
    if (c.rank() == 1) return check_sum(c);
    const auto [code, text] = error_that_changes_nothing(
        c, [&] { c = c.grow({.size = 4, .place = "/x", .timeout = std::chrono::seconds(1)}); });
    EXPECT_EQ(code, static_cast<int>(ErrorCode::timeout));
    EXPECT_THAT(text, HasSubstr("rank 1"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Grow, SizesAndPlacesThatCannotBeAreRefused) {
  const auto errors = run_ranks(over_shm(2), [&](Communicator& c) {
    for (const int size : {-1, 0, 1, 2, 1'000'000}) {
      const auto [code, text] = error_that_changes_nothing(c, [&] { c = c.grow({.size = size}); });
      EXPECT_EQ(code, static_cast<int>(ErrorCode::invalid_argument));
      EXPECT_THAT(text, HasSubstr(std::to_string(size)));
    }
    for (const char* const place : {"nowhere", ":4711", "host:", "host:99999", "host:12x"}) {
      const auto [code, text] =
          error_that_changes_nothing(c, [&] { c = c.grow({.size = 3, .place = place}); });
      EXPECT_EQ(code, static_cast<int>(ErrorCode::invalid_argument)) << place;
      EXPECT_THAT(text, HasSubstr(place));
    }
    const auto [code, text] = error_that_changes_nothing(c, [&] { c = c.grow({.size = 3}); });
    EXPECT_EQ(code, static_cast<int>(ErrorCode::invalid_argument)) << text;
    EXPECT_THAT(text, HasSubstr("grow()"));
    const auto [negative, why] = error_that_changes_nothing(
        c, [&] { c = c.grow({.size = 3, .place = "/x", .timeout = std::chrono::seconds(-1)}); });
    EXPECT_EQ(negative, static_cast<int>(ErrorCode::invalid_argument)) << why;
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Grow, NobodyJoinsALocalGroup) {
  const auto errors = run_ranks(calm(2), [](Communicator& c) {
    const auto [code, text] = error_that_changes_nothing(c, [&] { c = c.grow({.size = 3, .place = "/x"}); });
    EXPECT_EQ(code, static_cast<int>(ErrorCode::unsupported)) << text;
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Grow, NewRanksWithOtherOptionsAreRefusedAndNothingIsLost) {
  const std::string place = place_for("1");
  Setting other = over_shm(2);
  other.options.tune.slice_bytes = 65536;
  NewRanks others(other, 2, 3, place, check_sums);
  const auto errors = run_ranks(over_shm(2), [&](Communicator& c) {
    const auto [code, text] = error_that_changes_nothing(c, [&] { c = c.grow({.size = 3, .place = place}); });
    EXPECT_EQ(code, static_cast<int>(ErrorCode::mismatch));
    EXPECT_THAT(text, AllOf(HasSubstr("slice_bytes"), HasSubstr("rank 2")));
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(others.errors(), Each(HasSubstr("slice_bytes")));
}

TEST(Grow, AfterADeathShrinkComesFirst) {
  std::barrier joined(3);
  const auto errors = run_ranks(over_shm(3), [&](Communicator& c) {
    joined.arrive_and_wait();
    if (c.rank() == 1) return die(std::move(c));
    int code = 0;
    std::string text;
    // Either the call finds the failure, or the death comes while it waits.
    std::tie(code, text) = error_of([&] { c = c.grow({.size = 4, .place = "/x"}); });
    EXPECT_NE(code, 0);
    EXPECT_THAT(text, HasSubstr("it dies"));
    c = c.shrink();
    check_sums(c);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Grow, OperationsInFlightEndFirst) {
  const std::string place = place_for("1");
  NewRanks others(over_shm(2), 2, 3, place, check_sums);
  const auto errors = run_ranks(over_shm(2), [&](Communicator& c) {
    std::vector<std::vector<float>> data(20, std::vector<float>(50000, 1.0f));
    std::vector<RegisteredBuffer> registered;
    std::vector<Work> works;
    for (auto& d : data) {
      registered.push_back(c.register_buffer(d.data(), d.size() * sizeof(float)));
      works.push_back(c.allreduce({.input = d.data(), .output = d.data(), .count = d.size()}));
    }
    Communicator grown = c.grow({.size = 3, .place = place});
    for (Work& work : works) work.wait();
    for (const auto& d : data) EXPECT_THAT(d, Each(2.0f));
    EXPECT_EQ(error_of([&] { check_sum(c); }).first, static_cast<int>(ErrorCode::aborted));
    EXPECT_EQ(error_of([&] { c = c.grow({.size = 3, .place = place}); }).first,
              static_cast<int>(ErrorCode::aborted));
    check_sums(grown);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(others.errors(), Each(""));
}

TEST(Grow, APartOfASplitGrows) {
  const std::string place = place_for("1");
  NewRanks others(over_shm(4), 2, 3, place, check_sums);
  const auto errors = run_ranks(over_shm(4), [&](Communicator& c) {
    Communicator part = c.split(c.rank() % 2);
    if (c.rank() % 2 == 0) part = part.grow({.size = 3, .place = place});
    check_sums(part);
    check_sum(c);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(others.errors(), Each(""));
}

TEST(Grow, AHierarchyIsPlannedAnew) {
  const std::string place = place_for("1");
  Setting setting = over_shm(2);
  setting.options.tune.host_ranks = 2;
  setting.options.algorithm = Algorithm::hierarchy;
  NewRanks others(setting, 2, 4, place, check_sums);
  const auto errors = run_ranks(setting, [&](Communicator& c) {
    check_sum(c);
    c = c.grow({.size = 4, .place = place});
    check_sums(c);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(others.errors(), Each(""));
}

}  // namespace
}  // namespace nzcl::test
