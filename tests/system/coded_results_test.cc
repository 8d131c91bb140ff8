// Compressed allreduces whose results are coded again by their owners, beside plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nzcl/compress.h"
#include "perf/plain_compressor.h"
#include "perf/plain_results.h"
#include "tests/system/compressed_cases.h"
#include "tests/system/ranks.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// A step as all ranks see it, which each of them fills in and all then check.
class SharedStep {
 public:
  SharedStep(const Compressor& compressor, int ranks, ReduceOp op)
      : compressor_(compressor), op_(op), barrier_(ranks), steps_(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) plain_.emplace_back(compressor, kElements);
  }

  void note(int rank, std::vector<float> input, std::vector<float> before, std::vector<float> after,
            std::vector<float> result) {
    OfRank& mine = at(rank);
    mine.sent = plain_[static_cast<std::size_t>(rank)].step(input, rank, ranks());
    mine.before = std::move(before), mine.after = std::move(after), mine.result = std::move(result);
    barrier_.arrive_and_wait();
    if (rank == 0) check();
    barrier_.arrive_and_wait();
  }

 private:
  struct OfRank {
    std::vector<float> sent, before, after, result;
  };
  OfRank& at(int rank) { return steps_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return static_cast<int>(steps_.size()); }

  std::vector<float> sums() {
    std::vector<float> sums = at(0).sent;
    for (int r = 1; r < ranks(); ++r) {
      for (std::size_t i = 0; i < kElements; ++i) sums[i] += at(r).sent[i];
    }
    if (op_ == ReduceOp::avg) {
      for (float& v : sums) v /= static_cast<float>(ranks());
    }
    return sums;
  }
  bool anybody_sent(std::size_t i) const {
    for (const perf::PlainCompressor& p : plain_) {
      if (p.selected()[i]) return true;
    }
    return false;
  }

  void check() {
    const auto sum = sums();
    std::vector<std::vector<perf::Part>> parts;
    for (const OfRank& r : steps_) {
      ASSERT_EQ(bits(r.result), bits(at(0).result));
      parts.push_back(perf::parts_in(
          compressor_, {.sums = sum, .before = r.before, .after = r.after, .results = r.result}));
    }
    for (std::size_t i = 0; i < kElements; ++i) check_element(i, parts);
  }
  void check_element(std::size_t i, const std::vector<std::vector<perf::Part>>& parts) {
    int changed = 0, owners = 0;
    for (const auto& of_rank : parts) {
      ASSERT_NE(of_rank[i], perf::Part::wrong) << "element " << i;
      changed += of_rank[i] == perf::Part::owned;
      owners += of_rank[i] == perf::Part::owned || of_rank[i] == perf::Part::both;
    }
    ASSERT_LE(changed, 1) << "element " << i;
    if (anybody_sent(i)) {
      ASSERT_GE(owners, 1) << "element " << i;
    } else {
      ASSERT_TRUE(changed == 0 && at(0).result[i] == 0) << "element " << i;
    }
  }

  const Compressor compressor_;
  const ReduceOp op_;
  std::barrier<> barrier_;
  std::vector<perf::PlainCompressor> plain_;
  std::vector<OfRank> steps_;
};

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

void run_steps(const Setting& setting, const char* text, ReduceOp op = ReduceOp::sum) {
  const Compressor compressor = compressor_from_text(text);
  SharedStep shared(compressor, setting.ranks, op);
  const auto errors = run_ranks(setting, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    CompressorState state(compressor, kElements);
    std::vector<float> result(kElements);
    const auto buffer = communicator.register_buffer(result.data(), kElements * sizeof(float));
    for (unsigned step = 0; step < 5; ++step) {
      std::vector<float> input = gradient_of(rank, step);
      if (rank == 1 && step == 2) input[77'777] = std::numeric_limits<float>::quiet_NaN();
      const auto before = copy(state.result_residual());
      communicator
          .allreduce_compressed(
              {.state = &state, .input = input.data(), .output = result.data(), .op = op, .tag = step})
          .wait();
      shared.note(rank, input, before, copy(state.result_residual()), result);
      EXPECT_TRUE(std::ranges::all_of(state.result_residual(), [](float v) { return std::isfinite(v); }));
    }
    EXPECT_EQ(state.report().result_residual_norm > 0, compressor.residual);
  });
  EXPECT_THAT(errors, Each("")) << text;
}

// The check of the check.
TEST(PlainResults, TellWhatCannotBe) {
  const Compressor compressor = compressor_from_text("all,results=bf16");
  const auto part = [&](float sum, float before, float after, float result) {
    return perf::parts_in(
        compressor,
        {.sums = {&sum, 1}, .before = {&before, 1}, .after = {&after, 1}, .results = {&result, 1}})[0];
  };
  EXPECT_EQ(part(6.02f, 0, 6.02f - 6.03125f, 6.03125f), perf::Part::owned);
  EXPECT_EQ(part(6.02f, 1, 1, 6.03125f), perf::Part::untouched);
  EXPECT_EQ(part(6.0f, 0, 0, 6.0f), perf::Part::both);
  EXPECT_EQ(part(6.02f, 0, 0.01f, 6.03125f), perf::Part::wrong);
  EXPECT_EQ(part(6.02f, 0, 6.02f - 6.0f, 6.0f), perf::Part::wrong) << "not the nearest";
}

class CodedResults : public ::testing::TestWithParam<const char*> {};

TEST_P(CodedResults, AreTheSameEverywhereAndTheirErrorsAreKept) {
  for (const int ranks : {2, 3}) run_steps(of_ranks(ranks), GetParam());
  run_steps(of_ranks(3), GetParam(), ReduceOp::avg);
}

INSTANTIATE_TEST_SUITE_P(Compressors, CodedResults,
                         ::testing::Values("adacomp:500,results=bf16", "topk:0.02,results=fp16",
                                           "topk:0.02+qsgd:4,results=qsgd:8", "adacomp:50,results=qsgd:4:100",
                                           "qsgd:8,results=qsgd:8:64516", "all,results=bf16",
                                           "topk:0.0001:exact,results=qsgd:8:16",
                                           "topk:0.1,residual=0,results=bf16"),
                         compressor_name);

class CodedResultsPlaces : public ::testing::TestWithParam<Where> {};

TEST_P(CodedResultsPlaces, AreTheSameEverywhereAndTheirErrorsAreKept) {
  for (const char* text : {"adacomp:500,results=qsgd:8", "topk:0.02,results=bf16"})
    run_steps(GetParam().setting(), text);
}

INSTANTIATE_TEST_SUITE_P(Places, CodedResultsPlaces,
                         ::testing::Values(Where{"loopback", 5}, Where{"loopback", 3, 0, 2}, Where{"cma", 3},
                                           Where{"tcp", 2}),
                         [](const auto& place) { return place.param.text(); });

/// The bytes of results that the rank which received most of them received.
double received(const std::string& compressor) {
  constexpr int ranks = 4;
  constexpr std::uint64_t kMany = 1 << 20;
  std::vector<double> bytes(ranks);
  const auto errors = run_ranks(of_ranks(ranks), [&](Communicator& communicator) {
    CompressorState state(compressor_from_text(compressor), kMany);
    const auto input = normal_values(kMany, static_cast<unsigned>(communicator.rank()));
    std::vector<float> result(kMany);
    const auto buffer = communicator.register_buffer(result.data(), kMany * sizeof(float));
    Work work =
        communicator.allreduce_compressed({.state = &state, .input = input.data(), .output = result.data()});
    work.wait();
    bytes[static_cast<std::size_t>(communicator.rank())] =
        static_cast<double>(work.statistics().bytes_received);
  });
  EXPECT_THAT(errors, Each(""));
  return *std::ranges::max_element(bytes);
}

TEST(CodedResultsBytes, AreThoseOfTheirBits) {
  EXPECT_LE(received("all,results=qsgd:8"), received("all") / 3.9);
  EXPECT_LE(received("all,results=bf16"), received("all") / 1.98);
  // 4 per cent of the elements are in the union: a byte each, and less than one for where they are.
  EXPECT_LE(received("topk:0.01:exact,results=qsgd:8"), received("topk:0.01:exact") / 2.5);
}

TEST(CodedResultsState, IsSavedRestoredAndReset) {
  const auto errors = run_ranks(of_ranks(2), [&](Communicator& communicator) {
    const Compressor compressor = compressor_from_text("topk:0.1,results=qsgd:8");
    CompressorState state(compressor, kElements), other(compressor, kElements);
    std::vector<float> result(kElements);
    const auto buffer = communicator.register_buffer(result.data(), kElements * sizeof(float));
    const auto input = gradient_of(communicator.rank(), 1);
    communicator.allreduce_compressed({.state = &state, .input = input.data(), .output = result.data()})
        .wait();
    EXPECT_GT(state.report().result_residual_norm, 0);
    const auto saved = state.save();
    other.restore(saved);
    EXPECT_EQ(bits(other.result_residual()), bits(state.result_residual()));
    EXPECT_EQ(other.save(), saved);
    other.reset();
    EXPECT_EQ(other.report().result_residual_norm, 0);
    EXPECT_EQ(other.save(), CompressorState(compressor, kElements).save());
    CompressorState plain(compressor_from_text("topk:0.1"), kElements);
    EXPECT_TRUE(plain.result_residual().empty());
    EXPECT_THROW(plain.restore(saved), Error);
  });
  EXPECT_THAT(errors, Each(""));
}

/// What every rank is told if rank r of as many as there are texts has the r-th compressor.
std::vector<std::string> told(Setting setting, const std::vector<const char*>& texts) {
  setting.ranks = static_cast<int>(texts.size());
  std::vector<std::string> all(texts.size());
  (void)run_ranks(setting, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    CompressorState state(compressor_from_text(texts[rank]), kElements);
    std::vector<float> result(kElements);
    const auto buffer = communicator.register_buffer(result.data(), kElements * sizeof(float));
    const auto input = gradient_of(communicator.rank(), 0);
    all[rank] = refusal([&] {
      communicator.allreduce_compressed({.state = &state, .input = input.data(), .output = result.data()})
          .wait();
    });
  });
  return all;
}

TEST(CodedResultsRefusal, NamesRanksThatDisagree) {
  EXPECT_THAT(told(of_ranks(2), {"topk:0.1", "topk:0.1,results=qsgd:8"}),
              Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("results quantised"))));
  EXPECT_THAT(told(of_ranks(2), {"topk:0.1,results=fp16", "topk:0.1,results=bf16"}),
              Each(AllOf(HasSubstr("results as float16"), HasSubstr("results as bfloat16"))));
  EXPECT_THAT(told(of_ranks(2), {"topk:0.1,results=qsgd:8:64", "topk:0.1,results=qsgd:8:65"}),
              Each(AllOf(HasSubstr("ranks disagree"), HasSubstr("checksum of the compressor"))));
}

// Such a call fails alike on all ranks, and they go on.
TEST(CodedResultsRefusal, SaysWhichExchangesCannot) {
  Setting dedicated = of_ranks(2);
  dedicated.dedicated = 1;
  const auto errors = run_ranks(dedicated, [&](Communicator& communicator) {
    CompressorState state(compressor_from_text("all,results=bf16"), kElements);
    CompressorState plain(compressor_from_text("all"), kElements);
    std::vector<float> input(kElements, 1.0f), result(kElements);
    const auto buffer = communicator.register_buffer(result.data(), kElements * sizeof(float));
    const auto call = [&](CompressorState& s) {
      communicator.allreduce_compressed({.state = &s, .input = input.data(), .output = result.data()}).wait();
    };
    EXPECT_THAT(refusal([&] { call(state); }), HasSubstr("dedicated aggregators cannot"));
    EXPECT_EQ(state.report().steps, 0u);
    call(plain);
    EXPECT_THAT(result, Each(2.0f));
  });
  EXPECT_THAT(errors, Each(""));
}

// Nothing is lost where nothing is coded.
TEST(CodedResultsOfSmallTensors, AreAsTheyAre) {
  const auto errors = run_ranks(of_ranks(2), [&](Communicator& communicator) {
    constexpr std::uint64_t kFew = 500;
    CompressorState state(compressor_from_text("all,results=qsgd:8"), kFew);
    std::vector<float> input(kFew), result(kFew);
    for (std::size_t i = 0; i < kFew; ++i) input[i] = 1.0f / static_cast<float>(i + 1);
    const auto buffer = communicator.register_buffer(result.data(), kFew * sizeof(float));
    communicator.allreduce_compressed({.state = &state, .input = input.data(), .output = result.data()})
        .wait();
    for (std::size_t i = 0; i < kFew; ++i) ASSERT_EQ(result[i], input[i] + input[i]);
    EXPECT_EQ(state.report().result_residual_norm, 0);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
