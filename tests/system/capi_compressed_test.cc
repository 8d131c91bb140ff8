// Compression through the C API: two ranks, which are threads, and a state each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/nzcl.h"

namespace {

using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr std::size_t kCount = 3000;
const nzclLayer_t kLayers[] = {{1000, 0}, {2000, 0}};

#define NZCL_OK(call) ASSERT_EQ(call, nzclSuccess) << nzclGetLastError()

void on_ranks(void (*body)(nzclComm_t, int)) {
  nzclUniqueId id;
  NZCL_OK(nzclGetUniqueId(&id));
  std::vector<std::jthread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      nzclComm_t comm = nullptr;
      NZCL_OK(nzclCommInitRank(&comm, kRanks, id, r));
      body(comm, r);
      NZCL_OK(nzclCommDestroy(comm));
    });
  }
}

/// Rank r has 10 at r, r + 100, r + 200 ..., and little elsewhere: a hundredth is large.
std::vector<float> gradient_of(int rank) {
  std::vector<float> values(kCount, 0.5f);
  for (std::size_t i = static_cast<std::size_t>(rank); i < kCount; i += 100) values[i] = 10;
  return values;
}

void sum_once(nzclComm_t comm, nzclCompressorState_t state, const std::vector<float>& in,
              std::vector<float>& out, nzclRedOp_t op) {
  nzclWork_t work = nullptr;
  NZCL_OK(nzclAllReduceCompressed(in.data(), out.data(), kCount, op, state, comm, &work));
  NZCL_OK(nzclWorkWait(work, -1));
  NZCL_OK(nzclWorkFree(work));
}

// A sum of 6.02 is sent as the bfloat16 beside it, and its owner keeps the rest.
TEST(CApiCompressed, CodesResultsAndReportsWhatThatLoses) {
  static std::atomic<long long> owned;
  owned = 0;
  on_ranks([](nzclComm_t comm, int) {
    nzclCompressorState_t state = nullptr;
    NZCL_OK(nzclCompressorStateCreate("all,results=bf16", kLayers, 2, &state));
    const std::vector<float> in(kCount, 3.01f);
    std::vector<float> out(kCount, -1.0f);
    nzclBuffer_t buffer = nullptr;
    NZCL_OK(nzclCommRegister(comm, out.data(), out.size() * sizeof(float), &buffer));
    sum_once(comm, state, in, out, nzclSum);
    for (const float v : out) ASSERT_EQ(v, 6.03125f);
    nzclCompressionReport report{};
    report.size = sizeof report;
    NZCL_OK(nzclCompressorStateGetReport(state, &report));
    const double of_each = report.result_residual_norm / (double{3.01f + 3.01f} - 6.03125);
    owned += std::llround(of_each * of_each);
    // At half the rate what coding has lost counts twice.
    const double lost = report.result_residual_norm;
    NZCL_OK(nzclCompressorStateSetRate(state, 0.5f));
    NZCL_OK(nzclCompressorStateSetRate(state, 0.25f));
    NZCL_OK(nzclCompressorStateGetReport(state, &report));
    EXPECT_EQ(report.result_residual_norm, 2 * lost);
    NZCL_OK(nzclCommDeregister(comm, buffer));
    NZCL_OK(nzclCompressorStateDestroy(state));
  });
  EXPECT_EQ(owned, static_cast<long long>(kCount));
}

TEST(CApiCompressed, SumsWhatIsSentAndReports) {
  on_ranks([](nzclComm_t comm, int rank) {
    nzclCompressorState_t state = nullptr;
    NZCL_OK(nzclCompressorStateCreate("topk:0.01:exact", kLayers, 2, &state));
    const auto in = gradient_of(rank);
    std::vector<float> out(kCount, -1.0f);
    nzclBuffer_t buffer = nullptr;
    NZCL_OK(nzclCommRegister(comm, out.data(), out.size() * sizeof(float), &buffer));
    sum_once(comm, state, in, out, nzclSum);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], i % 100 < kRanks ? 10.0f : 0.0f) << i;

    nzclCompressionReport report{};
    report.size = sizeof report;
    NZCL_OK(nzclCompressorStateGetReport(state, &report));
    EXPECT_EQ(report.steps, 1u);
    EXPECT_EQ(report.elements, kCount);
    EXPECT_EQ(report.sent, 30u);
    EXPECT_EQ(report.element_ratio, 100);
    EXPECT_EQ(report.threshold, 10);
    EXPECT_NEAR(report.residual_norm * report.residual_norm, 0.25 * 2970, 1e-6);

    // At half the rate what is kept counts twice.
    NZCL_OK(nzclCompressorStateSetRate(state, 0.5f));
    NZCL_OK(nzclCompressorStateSetRate(state, 0.25f));
    const double kept = report.residual_norm;
    NZCL_OK(nzclCompressorStateGetReport(state, &report));
    EXPECT_EQ(report.residual_norm, 2 * kept);

    // The second step of a restored state is that of the first one.
    std::size_t bytes = 0;
    NZCL_OK(nzclCompressorStateSave(state, nullptr, &bytes));
    std::vector<unsigned char> saved(bytes);
    NZCL_OK(nzclCompressorStateSave(state, saved.data(), &bytes));
    nzclCompressorState_t other = nullptr;
    NZCL_OK(nzclCompressorStateCreate("topk:0.01:exact", kLayers, 2, &other));
    NZCL_OK(nzclCompressorStateRestore(other, saved.data(), bytes));
    std::vector<float> zeros(kCount, 0.0f);
    sum_once(comm, state, zeros, out, nzclAvg);
    const std::vector<float> first = out;
    sum_once(comm, other, zeros, out, nzclAvg);
    EXPECT_EQ(out, first);
    EXPECT_NE(out, zeros);
    NZCL_OK(nzclCompressorStateReset(other));
    sum_once(comm, other, zeros, out, nzclSum);
    EXPECT_EQ(out, zeros);

    NZCL_OK(nzclCompressorStateDestroy(state));
    NZCL_OK(nzclCompressorStateDestroy(other));
    NZCL_OK(nzclCommDeregister(comm, buffer));
  });
}

TEST(CApiCompressed, RefusesMisuseByName) {
  nzclCompressorState_t state = nullptr;
  EXPECT_EQ(nzclCompressorStateCreate("topk:7", kLayers, 2, &state), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("the ratio of TopK is 7"));
  EXPECT_EQ(nzclCompressorStateCreate(nullptr, kLayers, 2, &state), nzclInvalidArgument);
  EXPECT_EQ(nzclCompressorStateCreate("topk", nullptr, 2, &state), nzclInvalidArgument);
  const nzclLayer_t large_bin{100, std::uint64_t{1} << 33};
  EXPECT_EQ(nzclCompressorStateCreate("adacomp", &large_bin, 1, &state), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("the bin of a layer"));
  EXPECT_EQ(nzclCompressorStateCreate("topk", kLayers, static_cast<std::size_t>(-1), &state),
            nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("layer_count is 18446744073709551615"));
  const nzclLayer_t negative{static_cast<std::uint64_t>(-1), 0};
  EXPECT_EQ(nzclCompressorStateCreate("topk", &negative, 1, &state), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("a layer of 18446744073709551615 elements is too large"));
  EXPECT_EQ(nzclCompressorStateDestroy(nullptr), nzclSuccess);
  NZCL_OK(nzclCompressorStateCreate("topk", kLayers, 2, &state));
  std::size_t bytes = 10;
  std::vector<unsigned char> little(bytes);
  EXPECT_EQ(nzclCompressorStateSave(state, little.data(), &bytes), nzclInvalidArgument);
  EXPECT_GT(bytes, 4 * kCount);
  EXPECT_EQ(nzclCompressorStateRestore(state, little.data(), 10), nzclInvalidArgument);
  NZCL_OK(nzclCompressorStateSetRate(state, 0));
  EXPECT_EQ(nzclCompressorStateSetRate(state, -1), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("set_rate: the rate is -1; it may be 0, or from 1e-15 to 1e15"));
  EXPECT_EQ(nzclCompressorStateSetRate(nullptr, 1), nzclInvalidArgument);
  nzclCompressionReport report{};
  EXPECT_EQ(nzclCompressorStateGetReport(state, &report), nzclInvalidArgument) << "without a size";
  NZCL_OK(nzclCompressorStateDestroy(state));
}

// Every rank makes the same mistake, and all go on.
TEST(CApiCompressed, RefusedCallsLeaveTheCommunicatorUsable) {
  on_ranks([](nzclComm_t comm, int rank) {
    nzclCompressorState_t state = nullptr;
    NZCL_OK(nzclCompressorStateCreate("adacomp", kLayers, 2, &state));
    const auto in = gradient_of(rank);
    std::vector<float> out(kCount);
    nzclBuffer_t buffer = nullptr;
    NZCL_OK(nzclCommRegister(comm, out.data(), out.size() * sizeof(float), &buffer));
    nzclWork_t work = nullptr;
    EXPECT_EQ(nzclAllReduceCompressed(in.data(), out.data(), kCount - 1, nzclSum, state, comm, &work),
              nzclInvalidArgument);
    EXPECT_THAT(nzclGetLastError(), HasSubstr("count is 2999, and the state has 3000 elements"));
    EXPECT_EQ(nzclAllReduceCompressed(in.data(), out.data(), kCount, nzclMax, state, comm, &work),
              nzclInvalidArgument);
    EXPECT_EQ(nzclAllReduceCompressed(in.data(), out.data(), kCount, nzclSum, nullptr, comm, &work),
              nzclInvalidArgument);
    sum_once(comm, state, in, out, nzclSum);
    NZCL_OK(nzclCompressorStateDestroy(state));
    NZCL_OK(nzclCommDeregister(comm, buffer));
  });
}

}  // namespace
