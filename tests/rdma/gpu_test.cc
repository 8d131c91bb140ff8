// Allreduces of memory of an emulated GPU over native verbs: through the host, and read and written by the
// device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/rdma/rdma.h"
#include "tests/system/gpu_floats.h"
#include "tests/system/rank_to_kill.h"
#include "tests/system/run_on_gpu.h"

namespace nzcl::test {
namespace {

using testing::Each;

/// Whether the device reads and writes memory of the GPU itself.
class RdmaGpu : public Rdma, public testing::WithParamInterface<bool> {};

TEST_P(RdmaGpu, SumsHaveTheBitsOfThePlainSum) {
  const bool direct = GetParam();
  Setting with = setting(3);
  with.options.algorithm = Algorithm::push;
  with.options.tune.gpu_direct = direct;
  with.options.tune.direct_bytes = 4096;
  std::vector<std::pair<Problem, Expected>> problems;
  for (const Sparsity sparsity : kSparsities) {
    for (const std::uint64_t block : {256, 20000}) {
      const Problem p{.count = 100003, .block = block, .sparsity = sparsity, .ranks = 3};
      problems.emplace_back(p, make_expected(p));
    }
  }
  const auto run = [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    for (std::size_t i = 0; i < problems.size(); ++i)
      run_one_on_gpu(c, on, problems[i].first, problems[i].second, static_cast<Form>(i % 4), i % 3 == 0);
    EXPECT_EQ(c.statistics().gpu_direct_bytes > 0, direct);
  };
  EXPECT_THAT(run_ranks(with, run), Each(""));
}
std::string name_of_run(const testing::TestParamInfo<bool>& run) {
  return run.param ? "direct" : "through_the_host";
}
INSTANTIATE_TEST_SUITE_P(Ranks, RdmaGpu, testing::Bool(), name_of_run);

/// A rank that is killed while the device of the other one may still read or write memory of its GPU.
using RdmaGpuErrors = Rdma;
TEST_F(RdmaGpuErrors, DeadPeerReleasesTheStream) {
  Options options = setting(2).options;
  options.algorithm = Algorithm::push;
  options.tune.gpu_direct = true;
  options.tune.ack_timeout = 12;  // so that a write to a dead peer fails soon
  constexpr std::uint64_t kElements = 1 << 20;
  RankToKill other(options, "ibverbs", [](Communicator& c, const auto& die) {
    OnGpu on;
    GpuFloats floats(c, on, kElements);
    c.allreduce(floats.request(on.stream())).wait();
    die();
  });
  Communicator c(other.options_of_first());
  OnGpu on;
  GpuFloats floats(c, on, kElements);
  c.allreduce(floats.request(on.stream())).wait();
  EXPECT_THAT(floats.read(on), Each(2.0f));
  EXPECT_GT(c.statistics().gpu_direct_bytes, 0u);
  Work work = c.allreduce(floats.request(on.stream()));
  work.enqueue_wait(on.stream());
  other.kill();
  EXPECT_TRUE(ends(on, on.stream()));
  EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), testing::HasSubstr("rank 1"));
}

}  // namespace
}  // namespace nzcl::test
