// Every misuse and every failure ends on every rank with an error that names its cause. None hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>

#include "tests/system/misuse.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(ArgumentTest, EachBadArgumentIsNamedAndNothingIsStarted) {
  const auto errors = run_ranks(quick(1), [](Communicator& c) {
    Buffer b(c);
    const auto refused = [&](const std::function<void(AllreduceRequest&)>& change) {
      AllreduceRequest r = b.request();
      change(r);
      return error_of([&] { (void)c.allreduce(r); });
    };
    const int invalid = static_cast<int>(ErrorCode::invalid_argument);
    std::vector<float> foreign(10000);
    std::vector<std::uint64_t> short_bitmap(0 + 1);
    using Pair = std::pair<int, std::string>;
    const auto is = [&](const char* text) {
      return ::testing::Matcher<const Pair&>(::testing::Pair(invalid, HasSubstr(text)));
    };
    EXPECT_THAT(refused([](auto& r) { r.input = nullptr; }), is("input is null"));
    EXPECT_THAT(refused([](auto& r) { r.output = nullptr; }), is("output is null"));
    EXPECT_THAT(refused([](auto& r) { r.block_elems = 0; }), is("block_elems is 0"));
    EXPECT_THAT(refused([](auto& r) { r.count = ~std::uint64_t{0}; }), is("larger than memory"));
    EXPECT_THAT(refused([](auto& r) { r.count += 1; }), is("not inside a registered buffer"));
    EXPECT_THAT(refused([&](auto& r) { r.input = foreign.data(); }), is("input (40000 bytes"));
    EXPECT_THAT(refused([&](auto& r) {
                  r.output = b.data.data() + 1;
                  r.count = 100;
                }),
                is("overlap without being the same"));
    std::byte* const odd = reinterpret_cast<std::byte*>(b.data.data()) + 1;
    EXPECT_THAT(refused([&](auto& r) {
                  r.input = r.output = odd;
                  r.count = 8;
                }),
                is("not aligned"));
    EXPECT_THAT(refused([&](auto& r) {
                  r.bitmap = short_bitmap;
                  r.block_elems = 1;
                }),
                is("bitmap has 1 words"));
    EXPECT_THAT(refused([&](auto& r) {
                  r.bitmap = short_bitmap;
                  r.dense = true;
                }),
                is("exclude each other"));
    EXPECT_THAT(refused([](auto& r) { r.type = static_cast<DataType>(99); }), is("type 99"));
    EXPECT_THAT(refused([](auto& r) { r.op = static_cast<ReduceOp>(9); }), is("op 9"));

    const std::array<std::int64_t, 2> twice{3, 3}, beyond{0, 40}, negative{-1, 2};
    const auto sparse = [&](std::span<const std::int64_t> indices) {
      return error_of([&] {
        (void)c.allreduce_sparse(
            {.values = b.data.data(), .indices = indices, .count = 10000, .output = b.data.data()});
      });
    };
    EXPECT_THAT(sparse(twice), is("block index 3 is there twice"));
    EXPECT_THAT(sparse(beyond), is("block index 40 is not below the block count 40"));
    EXPECT_THAT(sparse(negative), is("block index -1"));

    EXPECT_THAT(error_of([&] { (void)c.register_buffer(nullptr, 5); }), is("the range is empty"));
    EXPECT_THAT(error_of([&] { (void)c.register_buffer(foreign.data(), 4, MemoryKind::device); }).first,
                AnyOf(static_cast<int>(ErrorCode::unavailable),  // without a driver, and with one:
                      static_cast<int>(ErrorCode::invalid_argument)));

    EXPECT_EQ(c.statistics().operations, 0u);
    c.allreduce(b.request()).wait();  // works before the failure
  });
  EXPECT_THAT(errors, Each(""));
}

// Nothing is laid out for it, and the communicator goes on.
TEST(ArgumentTest, ATensorThatCannotBeIsRefusedAtOnce) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer b(c);
    const auto invalid = ::testing::Pair(static_cast<int>(ErrorCode::invalid_argument), ::testing::Ne(""));
    constexpr std::uint64_t kCube = 1'000'000'000'000'000'000;  // (10^6)^3, the shape of a sparse tensor
    const std::array<std::int64_t, 2> few{3, 5};
    for (const std::uint64_t count :
         {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 62, kCube, std::uint64_t{1} << 45}) {
      for (const std::uint64_t block : {std::uint64_t{1}, std::uint64_t{256}, ~std::uint64_t{0}}) {
        AllreduceRequest dense = b.request();
        dense.count = count, dense.block_elems = block;
        EXPECT_THAT(error_of([&] { (void)c.allreduce(dense); }), invalid) << count << " in " << block;
        SparseAllreduceRequest stream{.values = b.data.data(),
                                      .indices = few,
                                      .count = count,
                                      .block_elems = block,
                                      .output = b.data.data()};
        EXPECT_THAT(error_of([&] { (void)c.allreduce_sparse(stream); }), invalid) << count << " in " << block;
        if (count / block < std::uint64_t{1} << 40) continue;
        stream.output = nullptr;
        stream.packed_grow = [](std::uint64_t) { return PackedMemory{}; };
        EXPECT_THAT(error_of([&] { (void)c.allreduce_sparse(stream); }), invalid) << count << " in " << block;
      }
    }
    // There are not so many indices, which must not be read.
    const SparseAllreduceRequest indices{.values = b.data.data(),
                                         .indices = {few.data(), ~std::size_t{0}, IndexType::int64},
                                         .count = 100,
                                         .block_elems = 1,
                                         .output = b.data.data(),
                                         .sum_duplicates = true};
    EXPECT_THAT(error_of([&] { (void)c.allreduce_sparse(indices); }), invalid);
    c.allreduce(b.request()).wait();
    EXPECT_EQ(b.data.front(), 2.0f);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ArgumentTest, BuffersOfARunningOperationAreRefused) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer b(c);
    Buffer other(c);
    if (c.rank() == 0) {
      Work first = c.allreduce(b.request());  // cannot complete yet, as the other rank has not begun
      const auto error = error_of([&] { (void)c.allreduce(b.request()); });
      EXPECT_EQ(error.first, static_cast<int>(ErrorCode::invalid_usage));
      EXPECT_THAT(error.second, HasSubstr("a buffer overlaps a buffer of operation 0"));
      EXPECT_EQ(error_of([&] { (void)first.union_bitmap(); }).first,
                static_cast<int>(ErrorCode::invalid_usage));
      first.wait();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      c.allreduce(b.request()).wait();
      EXPECT_THAT(error_of([&] { c.allreduce(other.request()).wait(); }).second,
                  HasSubstr("operation 1: rank 0 refused its request: a buffer overlaps"));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ArgumentTest, CallsOfOneShapeInAnotherOrderMeetByTheirOrder) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer ones(c), tens(c);
    std::fill(tens.data.begin(), tens.data.end(), 10.0f);
    Work first = c.allreduce(c.rank() == 0 ? ones.request() : tens.request());
    c.allreduce(c.rank() == 0 ? tens.request() : ones.request()).wait();
    first.wait();
    EXPECT_EQ(ones.data[0], 11.0f) << "nobody can tell that the ranks did not mean this";
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ArgumentTest, AfterCloseNothingStarts) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    c.barrier();
    c.close();
    EXPECT_THAT(error_of([&] { c.barrier(); }).second, HasSubstr("closed"));
    c.close();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(PackedTest, ATooSmallResultBufferFailsThatOperationOnly) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer b(c, 256 * 8);
    std::vector<float> packed(256 * 2);
    const auto p = c.register_buffer(packed.data(), packed.size() * 4);
    const std::array<std::int64_t, 2> mine{c.rank() * 2, c.rank() * 2 + 1};
    Work work = c.allreduce_sparse({.values = b.data.data(),
                                    .indices = mine,
                                    .count = 256 * 100,
                                    .packed_values = packed.data(),
                                    .packed_capacity = 2});
    EXPECT_THAT(error_of([&] { work.wait(); }).second,
                AllOf(HasSubstr("4 blocks"), HasSubstr("packed_capacity is 2")));
    c.allreduce(b.request()).wait();
    EXPECT_EQ(b.data[0], 2.0f);
  });
  EXPECT_THAT(errors, Each(""));
}

struct Disagreement {
  const char* name;
  std::function<void(AllreduceRequest&)> change;
  const char* text;
  friend void PrintTo(const Disagreement& d, std::ostream* out) { *out << d.name; }
};

class MismatchTest : public ::testing::TestWithParam<Disagreement> {};

TEST_P(MismatchTest, FailsOnEveryRankNamingWhatAndWho) {
  for (const int dedicated : {0, 1}) {
    auto errors = run_ranks(quick(3, dedicated), [](Communicator& c) {
      Buffer b(c);
      c.allreduce(b.request()).wait();
      AllreduceRequest r = b.request();
      if (c.rank() == 1) GetParam().change(r);
      c.allreduce(r).wait();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("operation 1"),
                                   HasSubstr(GetParam().text))));
  }
}

// Such a tensor takes one hop, in which no owner compares what the ranks say.
TEST_P(MismatchTest, OfASmallTensorToo) {
  for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::push}) {
    Setting two = quick(2);
    two.options.algorithm = algorithm;
    auto errors = run_ranks(two, [](Communicator& c) {
      Buffer b(c, 100);
      c.allreduce(b.request()).wait();
      AllreduceRequest r = b.request();
      if (c.rank() == 1) GetParam().change(r);
      c.allreduce(r).wait();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("operation 1"))))
        << name_of(algorithm);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, MismatchTest,
    ::testing::Values(Disagreement{"count", [](auto& r) { r.count -= 1; }, "count 9999"},
                      Disagreement{"tiny_count", [](auto& r) { r.count = 3; }, "count 3"},
                      Disagreement{"no_count", [](auto& r) { r.count = 0; }, "count 0"},
                      Disagreement{"type", [](auto& r) { r.type = DataType::int32; }, "int32"},
                      Disagreement{"op", [](auto& r) { r.op = ReduceOp::max; }, "max"},
                      Disagreement{"block", [](auto& r) { r.block_elems = 128; }, "blocks of 128"}),
    [](const auto& param) { return param.param.name; });

TEST(TimeoutTest, ARankThatNeverJoinsIsNamed) {
  for (const char* transport : {"loopback", "cma", "shm", "tcp"}) {
    Setting s = quick(3);
    s.transport = transport;
    std::promise<void> over;
    auto done = over.get_future().share();
    std::atomic<int> failed{0};
    const auto errors = run_ranks(s, [&](Communicator& c) {
      Buffer b(c);
      c.allreduce(b.request()).wait();
      if (c.rank() == 2) {  // this rank lives, but does not start the operation
        done.wait();
        c.barrier();
        return;
      }
      const auto guard = std::shared_ptr<void>(nullptr, [&](void*) {
        if (++failed == 2) over.set_value();
      });
      c.allreduce(b.request()).wait();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("operation 1"), HasSubstr("rank(s) 2 did not join"))))
        << transport;
  }
}

TEST(AbortTest, ReachesAllAndLaterCallsReportIt) {
  const auto errors = run_ranks(quick(3), [](Communicator& c) {
    Buffer b(c);
    if (c.rank() == 1) {
      c.allreduce(b.request()).wait();  // on other ranks it may still be under way when the abort comes
      c.abort("the loss is NaN");
    }
    const std::string first = error_of([&] {
                                while (true) c.allreduce(b.request()).wait();
                              }).second;
    EXPECT_THAT(first, AllOf(HasSubstr("aborted by rank 1"), HasSubstr("the loss is NaN")));
    EXPECT_EQ(error_of([&] { c.barrier(); }).second, first);
    ASSERT_TRUE(c.async_error());
    EXPECT_EQ(c.async_error()->what(), first);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(IndependenceTest, AFailedCommunicatorDoesNotDisturbAnother) {
  LocalGroup good(2), bad(2);
  Options options;
  options.timeout_s = 1;
  options.pin = Pinning::off;
  options.log_level = LogLevel::off;
  std::vector<std::jthread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Communicator a(good, r, options), b(bad, r, options);
      Buffer x(a), y(b);
      if (r == 0) b.abort("on purpose");
      EXPECT_NE(error_of([&] {
                  while (true) b.allreduce(y.request()).wait();
                }).second,
                "");
      for (int i = 0; i < 20; ++i) a.allreduce(x.request()).wait();
      EXPECT_EQ(x.data[5], static_cast<float>(1 << 20));
    });
  }
}

TEST(ThreadsTest, SeveralThreadsMayWaitAndTest) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    for (int turn = 0; turn < 50; ++turn) {
      Buffer x(c, 5000), y(c, 50);
      Work a = c.allreduce(x.request()), b = c.allreduce(y.request());
      std::vector<std::jthread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          Work mine = t % 2 ? a : b;
          if (t == 2) {
            while (!mine.test()) std::this_thread::yield();
          } else {
            mine.wait();
          }
        });
      }
      threads.clear();
      EXPECT_EQ(x.data[4999], 2.0f);
      EXPECT_EQ(y.data[49], 2.0f);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(WaitTest, ATimeLimitedWaitReturnsAndGoesOn) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer b(c);
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    Work work = c.allreduce(b.request());
    if (c.rank() == 0) {
      EXPECT_FALSE(work.wait(std::chrono::milliseconds(1)));
    }
    work.wait();
    EXPECT_TRUE(work.test());
    EXPECT_TRUE(work.wait(std::chrono::nanoseconds(0)));
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
