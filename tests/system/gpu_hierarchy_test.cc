// Sums in two levels of memory of a GPU: compared with plain sums in the same order, and what goes wrong with
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/system/by_hierarchy.h"
#include "tests/system/gpu_floats.h"
#include "tests/system/run_on_gpu.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::HasSubstr;

constexpr Hosts kTwoHosts{.ranks = 4, .host_ranks = 2};

class GpuHierarchy : public testing::TestWithParam<std::tuple<Hosts, const char*>> {};

/// Every rank has another mix of memory than its neighbour, and another one in the next operation.
TEST_P(GpuHierarchy, HasTheBitsOfThePlainSums) {
  const auto& [hosts, transport] = GetParam();
  std::vector<Problem> problems;
  unsigned seed = 0;
  for (const std::uint64_t count : {1u, 4097u, 300007u}) {
    for (const std::uint64_t block : {1u, 7u, 256u, 20000u}) {
      for (const DataType type : {DataType::float32, DataType::int64, DataType::uint8}) {
        const Problem p{.type = type,
                        .op = static_cast<ReduceOp>(++seed % kReduceOps),
                        .count = count,
                        .block = block,
                        .sparsity = kSparsities[seed % std::size(kSparsities)],
                        .ranks = hosts.ranks,
                        .seed = seed};
        if (!is_unfit(p)) problems.push_back(p);
      }
    }
  }
  std::vector<Expected> expected;
  for (const Problem& p : problems) expected.push_back(sum_by_hosts(p, hosts.host_ranks));
  const auto errors = run_ranks(by_hierarchy(hosts, transport), [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    for (std::size_t i = 0; i < problems.size(); ++i) {
      const auto form = static_cast<Form>(i / 3 % 4);
      run_one_on_gpu(c, on, problems[i], expected[i], form, i % 3 == 0);
      run_one_on_gpu(c, on, problems[i], expected[i], form, i % 3 == 1,
                     kMixes[(i + static_cast<std::size_t>(c.rank())) % 4]);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

INSTANTIATE_TEST_SUITE_P(Hosts, GpuHierarchy,
                         testing::Combine(testing::Values(kTwoHosts, Hosts{5, 2}),
                                          testing::Values("loopback", "shm", "tcp")),
                         [](const auto& its) {
                           return std::to_string(std::get<0>(its.param).ranks) + "_ranks_" +
                                  std::get<1>(its.param);
                         });

/// More operations than may be in flight in the levels, behind streams that come in another order than the
/// calls.
TEST(GpuHierarchyOrder, ManyOperationsOnStreamsOfAnyOrder) {
  constexpr std::size_t kInFlight = 20, kStreams = 4;
  const auto errors = run_ranks(by_hierarchy(kTwoHosts), [](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    std::vector<std::unique_ptr<GpuFloats>> floats;
    for (std::size_t i = 0; i < kInFlight; ++i)
      floats.push_back(std::make_unique<GpuFloats>(c, on, 3000 + i));
    std::vector<void*> streams;
    std::vector<gpu::Flag> flags;
    for (std::size_t s = 0; s < kStreams; ++s) {
      streams.push_back(on.gpu().make_stream());
      flags.push_back(on.gpu().take_flag());
      if (s % 2 == static_cast<std::size_t>(c.rank() % 2))
        on.gpu().await(streams[s], flags[s].device, flags[s].value);
    }
    std::vector<Work> works;
    for (std::size_t i = 0; i < kInFlight; ++i) {
      works.push_back(c.allreduce(floats[i]->request(streams[i % kStreams])));
      works[i].enqueue_wait(on.stream());
    }
    for (std::size_t s = kStreams; s-- > 0;) flags[s].raise_here();
    EXPECT_TRUE(ends(on, on.stream()));
    for (std::size_t i = 0; i < kInFlight; ++i) {
      works[i].wait();
      EXPECT_EQ(works[i].statistics().algorithm, Algorithm::hierarchy);
      std::vector<float> now(3000 + i);
      on.gpu().copy(on.stream(), now.data(), floats[i]->data, now.size() * sizeof(float));
      on.gpu().synchronize(on.stream());
      EXPECT_THAT(now, Each(4.0f)) << i;
    }
    for (void* stream : streams) on.gpu().destroy_stream(stream);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GpuHierarchyErrors, StreamThatDoesNotComeInTimeFailsByTimeout) {
  Setting s = by_hierarchy(kTwoHosts);
  s.options.timeout_s = 2;
  const auto errors = run_ranks(s, [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    c.allreduce(floats.request(on.stream())).wait();  // by then the levels have met
    const gpu::Flag flag = on.gpu().take_flag();
    if (c.rank() == 0) on.gpu().await(on.stream(), flag.device, flag.value);
    Work work = c.allreduce(floats.request(on.stream()));
    void* const other = on.gpu().make_stream();
    work.enqueue_wait(other);
    EXPECT_TRUE(ends(on, other));
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("its stream did not come to it"));
    c.close();
    flag.raise_here();  // the kernel runs now, and writes to memory that is still there
    EXPECT_TRUE(ends(on, on.stream()));
    on.gpu().destroy_stream(other);
  });
  EXPECT_THAT(errors, Each(""));
}

/// Sums that have not begun, because a stream has not come to them, must not keep a failed communicator
/// waiting. Nor may another rank, which learns of the failure later, take for a result what lies in their
/// place.
TEST(GpuHierarchyErrors, AbortEndsWhatHasNotBegun) {
  for (int round = 0; round < 10; ++round) {
    const int aborts = round % 2 == 0 ? 3 : 0;
    std::barrier called(4), failed(4);
    const auto errors = run_ranks(by_hierarchy(kTwoHosts), [&](Communicator& c) {
      OnGpu on;
      std::vector<std::unique_ptr<GpuFloats>> floats;
      for (int i = 0; i < 3; ++i) floats.push_back(std::make_unique<GpuFloats>(c, on));
      c.allreduce(floats[0]->request(on.stream())).wait();  // by then the levels have met
      const gpu::Flag flag = on.gpu().take_flag();
      if (c.rank() == 0) on.gpu().await(on.stream(), flag.device, flag.value);
      std::vector<Work> works;
      void* const other = on.gpu().make_stream();
      for (const auto& tensor : floats) {
        works.push_back(c.allreduce(tensor->request(on.stream())));
        works.back().enqueue_wait(other);
      }
      called.arrive_and_wait();
      if (c.rank() == aborts) c.abort("enough");
      EXPECT_TRUE(ends(on, other));
      for (Work& work : works)
        EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("enough")) << "rank " << c.rank();
      failed.arrive_and_wait();  // until the stream has come, no rank can have a result
      flag.raise_here();
      EXPECT_TRUE(ends(on, on.stream()));
      on.gpu().destroy_stream(other);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(GpuHierarchyErrors, RefusalOfOneRankLeavesTheCommunicatorUsable) {
  const auto errors = run_ranks(by_hierarchy(kTwoHosts), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    AllreduceRequest request = floats.request(on.stream());
    if (c.rank() == 1) {
      request.stream = &request;
      EXPECT_THAT(thrown_by([&] { static_cast<void>(c.allreduce(request)); }).what(),
                  HasSubstr("is no stream of this GPU"));
    } else {
      Work work = c.allreduce(request);
      work.enqueue_wait(on.stream());
      EXPECT_TRUE(ends(on, on.stream()));
      EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("rank 1 refused its request"));
    }
    c.allreduce(floats.request(on.stream())).wait();
    std::vector<float> now(kCount);
    on.gpu().copy(on.stream(), now.data(), floats.data, kCount * sizeof(float));
    on.gpu().synchronize(on.stream());
    EXPECT_THAT(now, Each(4.0f));
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test
