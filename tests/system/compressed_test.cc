// Compressed allreduces of several ranks, beside plain loops of the same compressor and a plain sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "nzcl/compress.h"
#include "perf/plain_compressor.h"
#include "tests/system/compressed_cases.h"
#include "tests/system/ranks.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr unsigned kSteps = 4;

/// One of the values is NaN.
std::vector<float> gradient_with_nan(int rank, unsigned step) {
  std::vector<float> values = gradient_of(rank, step);
  if (rank == 1 && step == 2) values[77'777] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

/// The result of every step, in plain loops: in rank order, what a rank does not send counts as zeros.
std::vector<std::vector<std::uint32_t>> expected_results(const Compressor& compressor,
                                                         const std::vector<Layer>& layers, int ranks,
                                                         ReduceOp op) {
  std::vector<perf::PlainCompressor> states;
  for (int r = 0; r < ranks; ++r) states.emplace_back(compressor, layers);
  std::vector<std::vector<std::uint32_t>> results;
  for (unsigned step = 0; step < kSteps; ++step) {
    std::vector<float> sum;
    for (int r = 0; r < ranks; ++r) {
      const auto sent = states[static_cast<std::size_t>(r)].step(gradient_with_nan(r, step), r, ranks);
      if (r == 0) {
        sum = sent;
      } else {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sent[i];
      }
    }
    if (op == ReduceOp::avg) {
      for (float& v : sum) v /= static_cast<float>(ranks);
    }
    results.push_back(bits(sum));
  }
  return results;
}

const std::vector<Layer> kLayers{{100'000}, {1}, {40'000}};

/// Runs all steps on all ranks, and compares every result.
void run_steps(const Setting& setting, const Compressor& compressor, ReduceOp op) {
  const auto expected = expected_results(compressor, kLayers, setting.ranks, op);
  const auto errors = run_ranks(setting, [&](Communicator& communicator) {
    CompressorState state(compressor, kLayers);
    std::vector<float> result(kElements);
    const auto buffer = communicator.register_buffer(result.data(), kElements * sizeof(float));
    for (unsigned step = 0; step < kSteps; ++step) {
      std::vector<float> input = gradient_with_nan(communicator.rank(), step);
      const bool in_place = step == 1;
      if (in_place) result = input;
      Work work = communicator.allreduce_compressed({.state = &state,
                                                     .input = in_place ? result.data() : input.data(),
                                                     .output = result.data(),
                                                     .op = op,
                                                     .tag = step});
      std::fill(input.begin(), input.end(), -1.0f);  // it was read before the call returned
      work.wait();
      EXPECT_EQ(bits(result), expected[step])
          << setting.ranks << " ranks, rank " << communicator.rank() << ", step " << step;
    }
    EXPECT_EQ(state.report().steps, kSteps);
  });
  EXPECT_THAT(errors, Each(""));
}

class Compressed : public ::testing::TestWithParam<const char*> {};

TEST_P(Compressed, GivesThePlainSumOnEveryRank) {
  const Compressor compressor = compressor_from_text(GetParam());
  for (const int ranks : {1, 2, 3}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) run_steps(of_ranks(ranks), compressor, op);
  }
}

class CompressedPlaces : public ::testing::TestWithParam<Where> {};

/// One that sends single elements, one that sends them coarsely, one that sends everything, and one whose
/// elements all ranks draw.
TEST_P(CompressedPlaces, GiveThePlainSumOnEveryRank) {
  for (const char* text : {"adacomp:500", "topk:0.02+qsgd:4", "qsgd:4", "randomk:0.02"})
    run_steps(GetParam().setting(), compressor_from_text(text), ReduceOp::sum);
}

INSTANTIATE_TEST_SUITE_P(Places, CompressedPlaces,
                         ::testing::Values(Where{"loopback", 5}, Where{"loopback", 3, 1},
                                           Where{"loopback", 2, 2}, Where{"loopback", 3, 0, 2},
                                           Where{"cma", 2}, Where{"cma", 5}, Where{"tcp", 2},
                                           Where{"tcp", 3}),
                         [](const auto& place) { return place.param.text(); });

// The option would round values whose errors no residual keeps.
TEST_P(Compressed, IsNotRoundedByTheOptionForWireTypes) {
  Setting setting = of_ranks(3);
  setting.options.wire_type = WireType::bfloat16;
  run_steps(setting, compressor_from_text(GetParam()), ReduceOp::sum);
}

INSTANTIATE_TEST_SUITE_P(Compressors, Compressed,
                         ::testing::Values("adacomp:500", "adacomp:50:slice", "topk:0.01:exact", "topk:0.01",
                                           "topk:0.02+qsgd:4", "threshold:2+bf16", "topk:0.02+fp16",
                                           "randomk:0.01", "randomk:0.02+qsgd:8:64", "randomk:0.00002",
                                           "randomk:0.3,warm_up=3", "blocktopk:0.05:64", "qsgd:4",
                                           "qsgd:2:100:feedback", "qsgd:8:65536", "bf16", "all+ternary",
                                           "all", "topk:0.001,momentum=0.9,warm_up=4,clip=100"),
                         compressor_name);

/// The gradient of a layer: the sum over some samples of what comes back, times what went in, of which a
/// ReLU has let half through.
std::vector<float> layer_gradient(int rank, unsigned step, std::uint64_t elements) {
  constexpr std::size_t kColumns = 512, kSamples = 4;
  std::mt19937 random(static_cast<unsigned>(rank) * 1000 + step + 7);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(elements), in(kColumns), back(elements / kColumns);
  for (std::size_t sample = 0; sample < kSamples; ++sample) {
    for (float& v : in) v = std::max(0.0f, normal(random));
    for (float& v : back) v = normal(random);
    for (std::size_t i = 0; i < elements; ++i) gradient[i] += back[i / kColumns] * in[i % kColumns];
  }
  return gradient;
}

/// How many times less than dense float32 the rank that wrote most wrote upwards in the last step, with all
/// headers. Of a dense tensor, as of a coded one, what a rank owns itself does not travel.
double upward_ratio(const std::string& compressor, std::uint64_t elements, unsigned steps,
                    auto make_gradient) {
  constexpr int ranks = 4;
  std::vector<double> ratios(static_cast<std::size_t>(ranks));
  const auto errors = run_ranks(of_ranks(ranks), [&](Communicator& communicator) {
    CompressorState state(compressor_from_text(compressor), elements);
    std::vector<float> result(elements);
    const auto buffer = communicator.register_buffer(result.data(), elements * sizeof(float));
    for (unsigned step = 0; step < steps; ++step) {
      const auto gradient = make_gradient(communicator.rank(), step, elements);
      Work work = communicator.allreduce_compressed(
          {.state = &state, .input = gradient.data(), .output = result.data()});
      work.wait();
      const double dense = 4.0 * static_cast<double>(elements) * (ranks - 1) / ranks;
      const double ratio = dense / static_cast<double>(work.statistics().bytes_sent);
      ratios[static_cast<std::size_t>(communicator.rank())] = ratio;
      EXPECT_NEAR(state.report().coded_ratio, ratio, 1e-9 * ratio);
      EXPECT_EQ(state.report().coded_bytes, work.statistics().bytes_sent);
    }
  });
  EXPECT_THAT(errors, Each(""));
  return *std::ranges::min_element(ratios);
}

std::vector<float> normal_gradient(int rank, unsigned step, std::uint64_t elements) {
  std::mt19937 random(static_cast<unsigned>(rank) * 1000 + step);
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (float& v : values) v = normal(random);
  return values;
}

TEST(CompressedBytes, OfAdaCompAreFewUpwards) {
  for (const std::uint64_t mebibytes : {1, 4, 16}) {
    const std::uint64_t elements = mebibytes << 18;
    // Independent values are the worst case: every bin sends many of them. The first steps send more than
    // later ones, because there is no residual yet.
    EXPECT_GE(upward_ratio("adacomp:50", elements, 4, normal_gradient), 40) << mebibytes << " MiB";
    EXPECT_GE(upward_ratio("adacomp:500", elements, 24, layer_gradient), 200) << mebibytes << " MiB";
  }
}

TEST(CompressedBytes, OfValueCodecsAreThoseOfTheirBits) {
  constexpr std::uint64_t kMany = 1 << 20;
  const auto ratio = [&](const char* text) { return upward_ratio(text, kMany, 2, normal_gradient); };
  EXPECT_GE(ratio("qsgd:2"), 32.0 / 2 * 0.97);
  EXPECT_GE(ratio("qsgd:4"), 32.0 / 4 * 0.97);
  EXPECT_GE(ratio("qsgd:8"), 32.0 / 8 * 0.97);
  EXPECT_GE(ratio("bf16"), 1.99);
  EXPECT_GE(ratio("all+ternary"), 31);
  // 1 per cent of the elements: 4 bytes each as they are, 2 as float16, half a byte in 4 bits, and about 1
  // for where they are.
  EXPECT_GE(ratio("topk:0.01:exact"), 400 / 5.15);
  EXPECT_GE(ratio("topk:0.01:exact+fp16"), 400 / 3.15);
  EXPECT_GE(ratio("topk:0.01:exact+qsgd:4"), 400 / 1.7);
}

TEST(CompressedBytes, OfWhatAllRanksDrawAreThoseOfValues) {
  constexpr std::uint64_t kMany = 1 << 20;
  const auto ratio = [&](const char* text) { return upward_ratio(text, kMany, 2, normal_gradient); };
  EXPECT_GE(ratio("randomk:0.01"), 400 / 4.15);
  EXPECT_GE(ratio("randomk:0.01+fp16"), 400 / 2.15);
  EXPECT_GE(ratio("randomk:0.01+qsgd:4"), 400 / 0.65);
}

// Results have the same elements, so no indices travel downwards either.
TEST(CompressedBytes, OfResultsOfWhatAllRanksDrawAreThoseOfValues) {
  const auto errors = run_ranks(of_ranks(4), [&](Communicator& communicator) {
    constexpr std::uint64_t kMany = 1 << 20;
    CompressorState state(compressor_from_text("randomk:0.01"), kMany);
    std::vector<float> result(kMany);
    const auto buffer = communicator.register_buffer(result.data(), kMany * sizeof(float));
    const auto gradient = normal_gradient(communicator.rank(), 0, kMany);
    Work work = communicator.allreduce_compressed(
        {.state = &state, .input = gradient.data(), .output = result.data()});
    work.wait();
    EXPECT_LE(static_cast<double>(work.statistics().bytes_received),
              1.05 * 4 * static_cast<double>(state.report().sent));
  });
  EXPECT_THAT(errors, Each(""));
}

// Sums over all steps approach those of the gradients: what was not sent early is sent later.
TEST(CompressedSum, KeepsNothingBackForLong) {
  const auto errors = run_ranks(of_ranks(2), [&](Communicator& communicator) {
    constexpr std::uint64_t kFew = 10'000;
    CompressorState state(compressor_from_text("topk:0.05:exact"), kFew);
    std::vector<float> constant(kFew, 1.0f + static_cast<float>(communicator.rank())), result(kFew);
    const auto buffer = communicator.register_buffer(result.data(), kFew * sizeof(float));
    std::vector<double> sums(kFew);
    constexpr int kMany = 100;
    for (int step = 0; step < kMany; ++step) {
      communicator.allreduce_compressed({.state = &state, .input = constant.data(), .output = result.data()})
          .wait();
      for (std::size_t i = 0; i < kFew; ++i) sums[i] += double{result[i]};
    }
    // With a share of 1/20, an element waits for at most 20 steps.
    for (const double sum : sums)
      ASSERT_THAT(sum, AllOf(::testing::Ge(3.0 * (kMany - 20)), ::testing::Le(3.0 * kMany)));
  });
  EXPECT_THAT(errors, Each(""));
}

// A rank's refusal fails the operation on all ranks, by name; the state stays as it was, and all go on.
TEST(CompressedRefusal, LeavesStateAndCommunicatorUsable) {
  for (const char* text : {"topk:0.1:exact,error=1", "qsgd:8,error=1"}) {
    const auto errors = run_ranks(of_ranks(2), [&](Communicator& communicator) {
      constexpr std::uint64_t kFew = 1000;
      CompressorState state(compressor_from_text(text), kFew);
      std::vector<float> input(kFew, 1.0f), result(kFew), unregistered(kFew);
      const auto buffer = communicator.register_buffer(result.data(), kFew * sizeof(float));
      const auto call = [&](CompressedAllreduceRequest r) { communicator.allreduce_compressed(r).wait(); };
      const CompressedAllreduceRequest good{.state = &state, .input = input.data(), .output = result.data()};
      call(good);
      const auto before = state.save();
      const auto on_rank_1 = [&](CompressedAllreduceRequest bad, const char* why) {
        if (communicator.rank() == 1) {
          EXPECT_THAT(refusal([&] { call(bad); }), HasSubstr(why));
          EXPECT_EQ(state.save(), before);
        } else {
          CompressorState other(compressor_from_text(text), kFew);  // its step is lost with the operation
          CompressedAllreduceRequest mine = good;
          mine.state = &other;
          EXPECT_THAT(refusal([&] { call(mine); }), AllOf(HasSubstr("rank 1"), HasSubstr(why)));
        }
      };
      CompressedAllreduceRequest bad = good;
      std::vector<float> infinite = input;
      infinite[5] = std::numeric_limits<float>::infinity();
      bad.input = infinite.data();
      on_rank_1(bad, "element 5 of the gradient is inf");
      bad = good;
      bad.output = unregistered.data();
      on_rank_1(bad, "is not inside a registered buffer");
      bad = good, bad.input = nullptr;
      on_rank_1(bad, "input is null");
      bad = good, bad.output = nullptr;
      on_rank_1(bad, "output is null");
      call(good);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

/// What the ranks are told whose states are made from these texts, and have done so many steps before.
std::vector<std::string> told(const std::vector<std::pair<const char*, int>>& states,
                              std::size_t elements = kElements) {
  std::vector<std::string> all(states.size());
  (void)run_ranks(of_ranks(static_cast<int>(states.size())), [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    CompressorState state(compressor_from_text(states[rank].first), elements);
    auto input = gradient_with_nan(communicator.rank(), 0);
    input.resize(elements);
    for (int step = 0; step < states[rank].second; ++step) (void)state.compress(input);
    std::vector<float> result(elements);
    const auto buffer = communicator.register_buffer(result.data(), elements * sizeof(float));
    all[rank] = refusal([&] {
      communicator.allreduce_compressed({.state = &state, .input = input.data(), .output = result.data()})
          .wait();
    });
  });
  return all;
}

// Ranks that draw other elements would take each other's values for those of their own.
TEST(CompressedRefusal, NamesRanksThatDrawOtherElements) {
  const auto refused = Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("checksum of the compressor")));
  EXPECT_THAT(told({{"randomk:0.01", 0}, {"randomk:0.01,seed=2", 0}}), refused);
  EXPECT_THAT(told({{"randomk:0.01", 0}, {"randomk:0.01", 1}}), refused);
  EXPECT_THAT(told({{"randomk:0.01", 2}, {"randomk:0.01", 2}, {"randomk:0.011", 2}}), refused);
  EXPECT_THAT(told({{"randomk:0.01", 0}, {"topk:0.01", 0}}), refused);
  EXPECT_THAT(told({{"randomk:0.01", 0}, {"randomk:0.01+bf16", 0}}), refused);
  EXPECT_THAT(told({{"randomk:0.01,seed=2", 1}, {"randomk:0.01,seed=2", 1}}), Each("not refused"));
}

// Sums of what different compressors send would be no error that anybody sees.
TEST(CompressedRefusal, NamesRanksWithOtherCompressors) {
  const auto refused = Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("checksum of the compressor")));
  for (const std::size_t elements : {std::size_t{100}, std::size_t{kElements}}) {
    EXPECT_THAT(told({{"topk:0.01", 0}, {"topk:0.02", 0}}, elements), refused) << elements;
    EXPECT_THAT(told({{"topk:0.01", 0}, {"topk:0.01,momentum=0.9", 0}}, elements), refused) << elements;
    EXPECT_THAT(told({{"adacomp", 0}, {"adacomp", 0}, {"adacomp:500:slice", 0}}, elements), refused);
    EXPECT_THAT(told({{"all", 0}, {"qsgd:8", 0}}, elements), refused) << elements;
    EXPECT_THAT(told({{"topk:0.01", 3}, {"topk:0.01", 0}}, elements), Each("not refused")) << elements;
    EXPECT_THAT(told({{"all", 0}, {"all", 0}}, elements), Each("not refused")) << elements;
  }
}

// Results would overwrite what is still to be read.
TEST(CompressedRefusal, OfAnOutputThatOverlapsTheInput) {
  for (const char* text : {"all", "topk:0.1"}) {
    for (const std::size_t elements : {std::size_t{100}, std::size_t{kElements}}) {
      const auto errors = run_ranks(of_ranks(2), [&](Communicator& communicator) {
        CompressorState state(compressor_from_text(text), elements);
        std::vector<float> memory(3 * elements, 1.0f);
        const auto buffer = communicator.register_buffer(memory.data(), memory.size() * sizeof(float));
        float* const middle = memory.data() + elements;
        for (const auto shift :
             {std::ptrdiff_t{1}, std::ptrdiff_t{-1}, static_cast<std::ptrdiff_t>(elements) - 1,
              1 - static_cast<std::ptrdiff_t>(elements)}) {
          EXPECT_THAT(refusal([&] {
                        (void)communicator.allreduce_compressed(
                            {.state = &state, .input = middle + shift, .output = middle});
                      }),
                      HasSubstr("allreduce: input and output overlap without being the same"))
              << shift;
        }
        EXPECT_EQ(state.report().steps, 0u);
        for (const float* input : {middle, middle + elements, middle - elements})
          communicator.allreduce_compressed({.state = &state, .input = input, .output = middle}).wait();
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

// While the other rank has not called yet, the operation is in flight.
TEST(CompressedRefusal, OfAnInputThatAnOperationInFlightWrites) {
  for (const char* text : {"all", "topk:0.1"}) {
    for (const std::size_t elements : {std::size_t{100}, std::size_t{kElements}}) {
      std::barrier<> refused(2);
      const auto errors = run_ranks(of_ranks(2), [&](Communicator& communicator) {
        CompressorState state(compressor_from_text(text), elements);
        std::vector<float> values(elements, 1.0f), sent(elements, 1.0f), result(elements);
        const auto first = communicator.register_buffer(values.data(), elements * sizeof(float));
        const auto second = communicator.register_buffer(result.data(), elements * sizeof(float));
        const auto wrong = [&] {
          communicator
              .allreduce_compressed({.state = &state, .input = values.data(), .output = result.data()})
              .wait();
        };
        if (communicator.rank() == 1) refused.arrive_and_wait();
        Work work =
            communicator.allreduce({.input = values.data(), .output = values.data(), .count = elements});
        if (communicator.rank() == 0) {
          EXPECT_THAT(refusal(wrong), HasSubstr("a buffer overlaps a buffer of operation 0"));
          refused.arrive_and_wait();
        } else {
          work.wait();
          EXPECT_THAT(refusal(wrong), HasSubstr("rank 0 refused its request: a buffer overlaps"));
        }
        work.wait();
        EXPECT_EQ(values, std::vector<float>(elements, 2.0f));
        CompressorState other(compressor_from_text(text), elements);  // the step before is lost on one rank
        communicator.allreduce_compressed({.state = &other, .input = values.data(), .output = values.data()})
            .wait();
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

// It takes its place in the order, so that the next operation meets that of the other ranks.
TEST(CompressedRefusal, OfAStateThatWasMovedFrom) {
  for (const bool all_ranks : {true, false}) {
    std::vector<std::string> next(2);
    (void)run_ranks(of_ranks(2), [&](Communicator& communicator) {
      CompressorState state(compressor_from_text("all"), 1000);
      std::vector<float> values(1000, 1.0f);
      const auto buffer = communicator.register_buffer(values.data(), values.size() * sizeof(float));
      std::optional<CompressorState> taken;
      if (all_ranks || communicator.rank() == 0) taken.emplace(std::move(state));
      const auto error = refusal([&] {
        communicator.allreduce_compressed({.state = &state, .input = values.data(), .output = values.data()})
            .wait();
      });
      EXPECT_THAT(error, HasSubstr("CompressorState is empty: it was moved from")) << communicator.rank();
      next[static_cast<std::size_t>(communicator.rank())] = refusal([&] {
        communicator.allreduce({.input = values.data(), .output = values.data(), .count = 10}).wait();
      });
    });
    // One that says nothing of its tensor cannot be matched with one that does, and both are named.
    EXPECT_THAT(next,
                Each(all_ranks ? HasSubstr("not refused") : HasSubstr("ranks disagree about operation 0")));
  }
}

TEST(CompressedRefusal, OfMinimaAndOfStatesInUse) {
  const auto errors = run_ranks(of_ranks(1), [&](Communicator& communicator) {
    constexpr std::uint64_t kFew = 1000;
    CompressorState state(compressor_from_text("topk:0.1"), kFew);
    std::vector<float> input(kFew, 1.0f), result(kFew);
    const auto buffer = communicator.register_buffer(result.data(), kFew * sizeof(float));
    EXPECT_THAT(refusal([&] {
                  (void)communicator.allreduce_compressed(
                      {.state = &state, .input = input.data(), .output = result.data(), .op = ReduceOp::min});
                }),
                HasSubstr("op is min; a compressed one may be sum or avg"));
  });
  EXPECT_THAT(errors, Each(""));
}

// While the other rank has not called yet, the operation is in flight.
TEST(CompressedState, BelongsToNzclUntilTheOperationHasCompleted) {
  std::barrier<> checked(2);
  const auto errors = run_ranks(of_ranks(2), [&](Communicator& communicator) {
    constexpr std::uint64_t kFew = 1000;
    auto state = std::make_unique<CompressorState>(compressor_from_text("topk:0.1"), kFew);
    std::vector<float> input(kFew, 1.0f), result(kFew);
    const auto buffer = communicator.register_buffer(result.data(), kFew * sizeof(float));
    if (communicator.rank() == 1) checked.arrive_and_wait();
    Work work = communicator.allreduce_compressed(
        {.state = state.get(), .input = input.data(), .output = result.data()});
    if (communicator.rank() == 0) {
      EXPECT_THAT(refusal([&] { state->reset(); }), HasSubstr("reset: an allreduce still uses this state"));
      EXPECT_THAT(refusal([&] { state->set_rate(0.5f); }),
                  HasSubstr("set_rate: an allreduce still uses this state"));
      EXPECT_THAT(refusal([&] { (void)state->compress(input); }),
                  HasSubstr("an allreduce still uses this state"));
      checked.arrive_and_wait();
    }
    state.reset();  // waits
    EXPECT_TRUE(work.test());
    EXPECT_EQ(result[0], 2.0f);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
