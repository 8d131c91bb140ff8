// A request that one rank refuses takes its place in the order of operations: it fails on every rank with one
// error, and every later sum is right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "tests/system/misuse.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Nothing here may need the timeout to end.
Setting patient(int ranks, int dedicated, const char* transport = "loopback") {
  Setting s = quick(ranks, dedicated);
  s.transport = transport;
  s.options.timeout_s = 3600;
  return s;
}

/// One rank with two registered tensors, and memory that is not registered.
struct Tensors {
  Tensors(Communicator& communicator, std::size_t n)
      : c(communicator),
        count(n),
        in(n),
        out(n),
        foreign(n),
        in_handle(c.register_buffer(in.data(), n * 4)),
        out_handle(c.register_buffer(out.data(), n * 4)) {}

  /// Every element of the input is `value` times (rank + 1).
  AllreduceRequest request(float value) {
    std::fill(in.begin(), in.end(), value * static_cast<float>(c.rank() + 1));
    return {.input = in.data(), .output = out.data(), .count = count, .block_elems = 64};
  }
  /// Sums correctly, with another value each time.
  void sum_and_check(float value) {
    c.allreduce(request(value)).wait();
    const int ranks = c.size();
    EXPECT_TRUE(all_are(value * static_cast<float>(ranks * (ranks + 1) / 2)));
  }

  /// Whether every element of the output has this value.
  bool all_are(float value) const {
    return std::all_of(out.begin(), out.end(), [value](float x) { return x == value; });
  }

  Communicator& c;
  std::size_t count;
  std::vector<float> in, out, foreign;
  RegisteredBuffer in_handle, out_handle;
};

constexpr std::size_t kSmall = 300, kLarge = 200003;

/// A request that rank 1 spoils, the text with which its own call refuses it, and the text that all others
/// read.
struct Mistake {
  const char* name;
  std::function<void(Tensors&, AllreduceRequest&)> spoil;
  const char* text;
  ErrorCode code = ErrorCode::invalid_argument;
};

const std::vector<std::uint64_t> kLongBitmap(20000);

const std::array kMistakes{
    Mistake{"foreign_input", [](Tensors& t, AllreduceRequest& r) { r.input = t.foreign.data(); },
            "not inside a registered buffer of this communicator"},
    Mistake{"foreign_output", [](Tensors& t, AllreduceRequest& r) { r.output = t.foreign.data(); },
            "output ("},
    Mistake{"gone_handle", [](Tensors& t, AllreduceRequest&) { t.in_handle = {}; },
            "its RegisteredBuffer is gone"},
    Mistake{"null", [](Tensors&, AllreduceRequest& r) { r.output = nullptr; }, "output is null"},
    Mistake{"long_bitmap", [](Tensors&, AllreduceRequest& r) { r.bitmap = kLongBitmap; },
            "bitmap has 20000 words"},
    Mistake{"timeout", [](Tensors&, AllreduceRequest& r) { r.timeout = std::chrono::nanoseconds(-1); },
            "timeout is"},
    Mistake{"op_and_memory",
            [](Tensors& t, AllreduceRequest& r) {
              r.op = ReduceOp::max;  // a second mistake of the same call, of which nobody need hear
              r.input = t.foreign.data();
            },
            "not inside a registered buffer"},
};

class RefusalTest : public ::testing::TestWithParam<std::tuple<int, int, std::size_t>> {};

TEST_P(RefusalTest, FailsTheOperationOnEveryRankAndNothingElse) {
  const auto& [ranks, dedicated, count] = GetParam();
  for (const Mistake& mistake : kMistakes) {
    const auto errors = run_ranks(patient(ranks, dedicated), [&, n = count](Communicator& c) {
      Tensors t(c, n);
      t.sum_and_check(1);
      AllreduceRequest r = t.request(2);
      if (c.rank() == 1) {
        mistake.spoil(t, r);
        const auto error = error_of([&] { (void)c.allreduce(r); });
        EXPECT_THAT(error.second, AllOf(StartsWith("allreduce: "), HasSubstr(mistake.text)));
        EXPECT_EQ(error.first, static_cast<int>(mistake.code));
        t.in_handle = c.register_buffer(t.in.data(), t.in.size() * 4);
      } else {
        std::fill(t.out.begin(), t.out.end(), -7.0f);
        const auto error = error_of([&] { c.allreduce(r).wait(); });
        EXPECT_THAT(error.second,
                    AllOf(StartsWith("operation 1: rank 1 refused its request: "), HasSubstr(mistake.text)));
        EXPECT_EQ(error.first, static_cast<int>(mistake.code));
        EXPECT_TRUE(t.all_are(-7.0f)) << "the output of a refused operation was written";
      }
      for (const float value : {3.0f, 4.0f, 5.0f}) t.sum_and_check(value);
      EXPECT_EQ(c.async_error(), std::nullopt);
    });
    EXPECT_THAT(errors, Each("")) << mistake.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, RefusalTest,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Values(0, 2),
                                            ::testing::Values(std::size_t{1}, kSmall, kLarge)),
                         [](const auto& param) {
                           return std::to_string(std::get<0>(param.param)) + "_ranks_" +
                                  std::to_string(std::get<1>(param.param)) + "_dedicated_" +
                                  std::to_string(std::get<2>(param.param)) + "_elements";
                         });

TEST(Refusal, OverEveryTransport) {
  for (const char* transport : {"cma", "shm", "tcp"}) {
    for (const std::size_t count : {kSmall, kLarge}) {
      const auto errors = run_ranks(patient(3, 0, transport), [&](Communicator& c) {
        Tensors t(c, count);
        for (int step = 0; step < 6; ++step) {
          AllreduceRequest r = t.request(1);
          if (c.rank() == step % 3) r.input = t.foreign.data();
          EXPECT_THAT(error_of([&] { c.allreduce(r).wait(); }).second,
                      HasSubstr("not inside a registered buffer"));
          t.sum_and_check(static_cast<float>(step));
        }
      });
      EXPECT_THAT(errors, Each("")) << transport << ", " << count << " elements";
    }
  }
}

TEST(Refusal, AmongManyOperationsInFlight) {
  for (const int dedicated : {0, 1}) {
    const auto errors = run_ranks(patient(3, dedicated), [](Communicator& c) {
      constexpr int kInFlight = 40;
      std::vector<std::unique_ptr<Tensors>> tensors;
      std::vector<Work> works(kInFlight);
      for (int i = 0; i < kInFlight; ++i) {
        tensors.push_back(std::make_unique<Tensors>(c, i % 3 == 0 ? std::size_t{200} : std::size_t{30000}));
        AllreduceRequest r = tensors.back()->request(static_cast<float>(i));
        const bool refused = i % 7 == 3 && c.rank() == i % 3;
        if (refused) r.output = tensors.back()->foreign.data();
        EXPECT_EQ(error_of([&] { works[static_cast<std::size_t>(i)] = c.allreduce(r); }).first != 0, refused);
      }
      for (int i = 0; i < kInFlight; ++i) {
        Work& work = works[static_cast<std::size_t>(i)];
        if (!work.valid()) continue;
        const std::string text = error_of([&] { work.wait(); }).second;
        if (i % 7 == 3) {
          EXPECT_THAT(text, StartsWith("operation " + std::to_string(i) + ": rank " + std::to_string(i % 3)));
        } else {
          EXPECT_EQ(text, "");
          EXPECT_TRUE(tensors[static_cast<std::size_t>(i)]->all_are(6.0f * static_cast<float>(i)));
        }
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Refusal, OfSeveralTheLowestRankIsNamedEverywhere) {
  for (const std::size_t count : {kSmall, kLarge}) {
    const auto errors = run_ranks(patient(4, 0), [&](Communicator& c) {
      Tensors t(c, count);
      AllreduceRequest r = t.request(1);
      if (c.rank() == 1) r.output = nullptr;
      if (c.rank() == 3) r.input = nullptr;
      const std::string text = error_of([&] { c.allreduce(r).wait(); }).second;
      const std::array<std::string, 4> expected{
          "operation 0: rank 1 refused its request: output is null", "allreduce: output is null",
          "operation 0: rank 1 refused its request: output is null", "allreduce: input is null"};
      EXPECT_EQ(text, expected[static_cast<std::size_t>(c.rank())]);
      t.sum_and_check(2);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Refusal, OfAllRanksGoesOn) {
  const auto errors = run_ranks(patient(3, 1), [](Communicator& c) {
    Tensors t(c, kSmall);
    AllreduceRequest no_type = t.request(1), no_memory = t.request(1);
    no_type.type = static_cast<DataType>(99);
    no_memory.input = t.foreign.data();
    for (const AllreduceRequest& r : {no_type, no_memory}) {
      EXPECT_EQ(error_of([&] { (void)c.allreduce(r); }).first, static_cast<int>(ErrorCode::invalid_argument));
      t.sum_and_check(2);
    }
    EXPECT_EQ(c.statistics().operations, 2u) << "refused requests do not count";
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Refusal, OfABufferOfAnotherCommunicatorSaysSo) {
  LocalGroup group(1), other_group(1);
  Communicator communicator(group, 0), other(other_group, 0);
  std::vector<float> data(100, 1.0f);
  const RegisteredBuffer elsewhere = other.register_buffer(data.data(), data.size() * 4);
  const AllreduceRequest request{.input = data.data(), .output = data.data(), .count = data.size()};
  EXPECT_THAT(error_of([&] { (void)communicator.allreduce(request); }).second,
              HasSubstr("but in one of another communicator"));
  const RegisteredBuffer here = communicator.register_buffer(data.data(), data.size() * 4);
  communicator.allreduce(request).wait();
  other.allreduce(request).wait();
}

TEST(Refusal, OfARequestForNoTensorFailsTheCommunicatorIfTheOthersHaveOne) {
  for (const int dedicated : {0, 1}) {
    for (const std::size_t count : {kSmall, kLarge}) {
      const auto errors = run_ranks(patient(3, dedicated), [&](Communicator& c) {
        Tensors t(c, count);
        t.sum_and_check(1);
        AllreduceRequest r = t.request(1);
        if (c.rank() == 1) r.block_elems = 0;
        (void)error_of([&] { (void)c.allreduce(r); });
        while (true) c.barrier();  // until the ranks learn of it
      });
      EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("operation 1"),
                                     HasSubstr("a request that rank 1 refused (block_elems is 0"))));
    }
  }
}

/// Ranks that let values travel in different types do not cut a tensor alike. They say so, also if one of
/// them has refused its request, and blame nobody for wrong data.
TEST(Refusal, MeetsAnotherTypeOnTheWire) {
  for (const std::uint64_t block : {1, 64, 256}) {
    for (const int refusing : {0, 1}) {
      Setting s = patient(2, 0);
      const auto errors = run_ranks(s, [&](Communicator& c) {
        Tensors t(c, kLarge);
        AllreduceRequest r = t.request(1);
        r.block_elems = block;
        r.wire_type = c.rank() == 0 ? WireType::float16 : WireType::as_is;
        if (c.rank() == refusing) r.output = t.foreign.data();
        (void)error_of([&] { c.allreduce(r).wait(); });
        for (int i = 0; i < 1000; ++i) c.barrier();  // until the ranks learn of it
      });
      EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("operation 0"))));
    }
  }
}

/// In the smallest slots, the reason of a refusal does not fit behind the tiles of an operation in flight.
TEST(Refusal, BehindAnOperationInFlightInSmallSlots) {
  constexpr std::uint64_t kFirst = 64717, kSecond = 55869, kBlock = 7;
  Setting s = patient(2, 0);
  s.options.tune.slot_bytes = 4096;
  const auto errors = run_ranks(s, [&](Communicator& c) {
    std::vector<std::uint16_t> in(kFirst), out(kFirst);
    for (std::uint64_t i = 0; i < kFirst; i += 7 + static_cast<unsigned>(c.rank())) in[i] = 0x3c00;
    std::vector<float> values(kSecond, 1.0f), dense(kSecond);
    std::vector<std::int64_t> indices;
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(kSecond / kBlock); b += 97) indices.push_back(b);
    const auto a = c.register_buffer(in.data(), kFirst * 2), b = c.register_buffer(out.data(), kFirst * 2);
    const auto v = c.register_buffer(values.data(), kSecond * 4),
               d = c.register_buffer(dense.data(), kSecond * 4);
    for (int i = 0; i < 100; ++i) {
      Work work = c.allreduce({.input = in.data(),
                               .output = out.data(),
                               .count = kFirst,
                               .type = DataType::float16,
                               .block_elems = 16,
                               .algorithm = Algorithm::push});
      EXPECT_THAT(error_of([&] {
                    c.allreduce_sparse({.values = values.data(),
                                        .indices = indices,
                                        .count = kSecond,
                                        .block_elems = kBlock,
                                        .output = dense.data(),
                                        .algorithm = Algorithm::doubling})
                        .wait();
                  }).second,
                  HasSubstr("algorithm doubling is for at most"));
      work.wait();
      EXPECT_EQ(out[0], 0x4000);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Refusal, OfSparseBlocks) {
  const std::array<std::int64_t, 2> good{0, 2}, twice{1, 1}, beyond{0, 1000};
  for (const bool packed : {false, true}) {
    const auto errors = run_ranks(patient(3, 0), [&](Communicator& c) {
      Tensors t(c, kSmall);
      const auto sum = [&](std::span<const std::int64_t> indices, const void* values) {
        SparseAllreduceRequest r{
            .values = values, .indices = indices, .count = kSmall, .block_elems = 32, .output = nullptr};
        if (packed) {
          r.packed_values = t.out.data();
          r.packed_capacity = 5;
        } else {
          r.output = t.out.data();
        }
        return error_of([&] { c.allreduce_sparse(r).wait(); }).second;
      };
      const auto check = [&](std::span<const std::int64_t> wrong, const void* values, const char* text) {
        std::fill(t.in.begin(), t.in.end(), 1.0f);
        const bool mine = c.rank() == 2;
        EXPECT_THAT(sum(mine ? wrong : good, mine ? values : t.in.data()), HasSubstr(text));
        EXPECT_EQ(sum(good, t.in.data()), "");
        EXPECT_EQ(t.out[0], 3.0f);
      };
      check(twice, t.in.data(), "block index 1 is there twice");
      check(beyond, t.in.data(), "block index 1000 is not below");
      check(good, t.foreign.data(), "not inside a registered buffer");
      check(good, nullptr, "values is null");
      // Without any output, a rank cannot say whether it wants its result dense or packed.
      SparseAllreduceRequest nowhere{
          .values = t.in.data(), .indices = good, .count = kSmall, .block_elems = 32, .output = nullptr};
      if (c.rank() == 0) {
        EXPECT_THAT(error_of([&] { (void)c.allreduce_sparse(nowhere); }).second,
                    HasSubstr("no memory is given"));
      } else {
        EXPECT_THAT(sum(good, t.in.data()), HasSubstr("rank 0 refused its request: no memory is given"));
      }
      EXPECT_EQ(sum(good, t.in.data()), "");
    });
    EXPECT_THAT(errors, Each("")) << packed;
  }
}

TEST(Refusal, AClosedCommunicatorDoesNotWaitForARefusedRequestThatNobodyElseMade) {
  const auto errors = run_ranks(patient(2, 0), [](Communicator& c) {
    Tensors t(c, kLarge);
    t.sum_and_check(1);
    AllreduceRequest r = t.request(1);
    r.input = t.foreign.data();
    if (c.rank() == 0) (void)error_of([&] { (void)c.allreduce(r); });
    c.close();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TagTest, EqualTagsSum) {
  const auto errors = run_ranks(patient(3, 0), [](Communicator& c) {
    Tensors t(c, kLarge);
    AllreduceRequest r = t.request(1);
    r.tag = ~std::uint64_t{0};
    c.allreduce(r).wait();
    EXPECT_TRUE(t.all_are(6.0f));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TagTest, DifferentTagsFailTheCommunicatorByName) {
  for (const std::size_t count : {kSmall, kLarge}) {
    const auto errors = run_ranks(patient(3, 0), [&](Communicator& c) {
      Tensors t(c, count);
      AllreduceRequest r = t.request(1);
      r.tag = c.rank() == 2 ? 42 : 41;
      c.allreduce(r).wait();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("tag 41"), HasSubstr("tag 42"))));
  }
}

// Ranks could choose different exchanges if they expected different densities, so it is never taken.
TEST(Hints, RanksThatExpectDifferentDensitiesAreNamed) {
  for (const std::uint64_t count : {std::uint64_t{100}, std::uint64_t{300'000}}) {
    for (const int ranks : {2, 3, 5}) {
      const auto errors = run_ranks(patient(ranks, 0), [&](Communicator& c) {
        Buffer b(c, count);
        AllreduceRequest r = b.request();
        r.expected_density = 0.01;
        c.allreduce(r).wait();
        r.expected_density = c.rank() == 1 ? 0.02 : 0.01;
        c.allreduce(r).wait();
      });
      EXPECT_THAT(errors,
                  Each(AllOf(HasSubstr("ranks disagree about operation 1"),
                             HasSubstr("expected density 0.01"), HasSubstr("expected density 0.02"))));
    }
  }
}

TEST(Hints, AWrongOneChangesNoResultAndOneThatCannotBeIsRefused) {
  const auto errors = run_ranks(patient(3, 0), [&](Communicator& c) {
    Buffer b(c, 5000);
    for (const double density : {0.0, 1e-300, 0.5, 1.0}) {
      std::fill(b.data.begin(), b.data.end(), 1.0f);
      AllreduceRequest r = b.request();
      r.expected_density = density;
      c.allreduce(r).wait();
      EXPECT_THAT(b.data, Each(3.0f));
    }
    for (const double density : {-0.1, 1.5, std::nan("")}) {
      AllreduceRequest r = b.request();
      r.expected_density = density;
      EXPECT_THAT(error_of([&] { c.allreduce(r).wait(); }).second,
                  HasSubstr("allreduce: expected_density is"));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

/// A layer above refuses a call of its own: its place in the order is taken.
TEST(RefusedByCaller, AllRanksAlikeGoOn) {
  const auto errors = run_ranks(patient(3, 0), [](Communicator& c) {
    Tensors t(c, kSmall);
    t.sum_and_check(1);
    c.refuse("no such shape");
    t.sum_and_check(2);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(RefusedByCaller, OneRankAloneFailsAllByName) {
  run_ranks(patient(3, 0), [](Communicator& c) {
    Tensors t(c, kSmall);
    t.sum_and_check(1);
    if (c.rank() == 1) c.refuse("no such shape");
    EXPECT_THAT(error_of([&] { c.allreduce(t.request(2)).wait(); }).second,
                AllOf(HasSubstr("rank 1"), HasSubstr("no such shape")));
  });
}

}  // namespace
}  // namespace nzcl::test
